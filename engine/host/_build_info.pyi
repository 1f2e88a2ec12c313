"""What the build writes beside the extension (CMakeLists.txt)."""

DNNL_VERSION: str
DNNL_FOLDER: str | None
