"""Sentinels: processes beside the ranks, which notice when a rank dies or hangs, and end the others.

The sentinel of one rank is `python -I -S engine/watchdog RANK PID BOARD SECONDS`.

It uses the standard library and engine.errors only. Rank 0's is the hub as well. It watches for ranks that die, and for
ranks that make no progress (guard.py, hub.py); where a rank is stands on its board, which is read without the rank's
help.

Who can reach the hub. It listens on loopback where all ranks share a network, else on the address that the ranks use,
and no longer than until all have come. Who does not say the token at once is hung up on.

A rank that dies. Every rank holds a TCP connection to the hub. When a connection ends without a farewell its rank has
died: the hub says so, once, and what is safe, and has every sentinel kill its own rank. The farewell is the last thing
that a rank does: what comes after MPI_Finalize can crash, too. One process sees all the ends in the order in
which the kernel closes the connections; sentinels that each watched their own rank would be overtaken by a launcher
that kills the others at once.

A rank that hangs. Its sentinel tells the hub, which asks all sentinels where their ranks are, prints the answers, once,
and ends the ranks likewise. If a rank that waits for no other has made progress meanwhile the hub waits, and is asked
again: the others wait for that one, which is slow. If all ranks have been stopped by a signal it waits, too: somebody
has suspended the run.

A supervisor that is killed (supervise.py). Each sentinel sees it, and has its own rank stop in order.

What a rank leaves. MPI's files of shared memory outlive a rank that is killed, and so do copies of data that were made
for the run: its sentinel removes them, copies when no other process reads them.

    rank 0 -> sentinel 0    listen REACH                         host (loopback) or network; answer, for all ranks:
    sentinel 0 -> rank 0    TOKEN HOST:PORT ...                  where the hub listens until all have come
    rank -> its sentinel    hub TOKEN HOST:PORT ...              end of file: the rank has ended
                            ranks NUMBER                 of them all
                            watch SECONDS                        0: not at all
                            saved FILE                   rank 0's: where the run could go on
                            outlive 0|1                  rank 0's: whether the others go on when a rank dies
                            leaves [[LOCK, ...], [FOLDER, ...]]  JSON; see World.leaves()
                            keeps [FOLDER, ...]          JSON; see World.keeps()
                            child PID                    forked by the rank: ends with it, unless it ends well
                            bye
    rank -> hub             rank TOKEN RANK PID HOST             answer: welcome
                            here                         has heard it: from now on its end is its death
                            fail                                 answer: first, or late if another has failed before
                            complete                     nobody has anything left to do but to end
                            bye
    sentinel -> hub         guard TOKEN                          answer: welcome
                            here                         answers, later perhaps: where, wait, stop
                            stuck SECONDS                        answer: where, or wait if it is not to be judged now
                            at RANK PID HOST IDLE STATE WAITS TEXT   answers `where`; see report.Answer
"""
