"""Prints a script by which bash or zsh completes verbs, flags and the values of flags. Put into ~/.bashrc:
eval "$(engine completion bash)", or into ~/.zshrc, after compinit: eval "$(engine completion zsh)".
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

ORDER = 210
SUMMARY = "print a script by which bash or zsh completes command lines"
EXAMPLES = [
    "engine completion bash > ~/.local/share/bash-completion/completions/engine",
    'eval "$(engine completion bash)"',
    'eval "$(engine completion zsh)"',
]

# It holds the verbs, flags and values of this version, so that no program is started when a key is pressed.
SCRIPT = """_engine() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="VERBS --help --version"
    else
        case "$verb $before" in
VALUES
        *) case "$verb" in
FLAGS
            esac
            case "$word" in -*) ;; *) words="" ;; esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -o bashdefault -F _engine engine
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"], help="whose completion")


def run(options: Namespace) -> int:
    from engine.verbs.command_line import parser_of, verb_names

    names, values, flags = verb_names(), [], []
    for verb in names:
        found = parser_of(verb)._option_string_actions
        flags.append(f'            {verb}) words="{" ".join(flag for flag in found if flag.startswith("--"))}" ;;')
        for flag, action in found.items():
            if action.choices:
                values.append(f'        "{verb} {flag}") words="{" ".join(map(str, action.choices))}" ;;')
    script = SCRIPT.replace("VERBS", " ".join(names)).replace("VALUES", "\n".join(values))
    if options.shell == "zsh":
        print("autoload -U +X bashcompinit && bashcompinit")
    print(script.replace("FLAGS", "\n".join(flags)), end="")
    return 0
