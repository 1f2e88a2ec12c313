"""Compiles proto/caffe.proto into engine/proto/caffe.desc, the form in which engine loads its schema.

A FileDescriptorSet, unlike a generated module, works with every protobuf runtime. setup.py calls compile_schema();
after a change of the schema in a checkout, run `python tools/build_proto.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "proto" / "caffe.proto"
DESCRIPTORS = ROOT / "engine" / "proto" / "caffe.desc"
CHECKSUM = b"\xc5\x3e"  # the key of field 1000, a fixed32, which a FileDescriptorSet does not have: parsers skip it


def compile_schema(proto_path: str | os.PathLike, desc_path: str | os.PathLike) -> None:
    """Writes the FileDescriptorSet of proto_path to desc_path, whole or not at all. The CRC-32 of the text follows, by
    which engine.proto sees that the text has changed. Raises RuntimeError if protoc refuses the schema."""
    from grpc_tools import protoc

    proto_path, desc_path = Path(proto_path).resolve(), Path(desc_path).resolve()
    desc_path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=desc_path.parent) as folder:
        output = Path(folder) / desc_path.name
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={proto_path.parent}",
                f"--descriptor_set_out={output}",
                "--include_imports",
                proto_path.name,
            ]
        )
        if status != 0:
            raise RuntimeError(f"{proto_path}: protoc refuses the schema (its messages are above)")
        with output.open("ab") as file:
            file.write(CHECKSUM + zlib.crc32(proto_path.read_bytes()).to_bytes(4, "little"))
        os.replace(output, desc_path)


if __name__ == "__main__":
    compile_schema(*(sys.argv[1:] or (SCHEMA, DESCRIPTORS)))
