#!/bin/bash
# Compiles engine for AArch64 on an x86 machine, and trains the digits with it under QEMU. On Debian 12, as root:
#     apt-get install g++-aarch64-linux-gnu qemu-user cmake ninja-build
#     packaging/aarch64.sh /scratch/aarch64                  # 1.3 GB; five minutes on two cores, training another two
# oneDNN 3.7, Python 3.13 and what else engine needs come from Debian 13 for that processor, the rest from PyPI, into a
# folder of its own.
set -euo pipefail
work=${1:?a folder to work in} repo=$(cd "$(dirname "$0")/.." && pwd)
root=$work/root site=$work/site
mkdir -p "$work"/apt/{lists/partial,archives/partial} "$root"/usr/{lib,bin,sbin}

if [ ! -e "$work/apt/done" ]; then
  echo "deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" \
    > "$work/apt/sources.list"
  : > "$work/apt/status"
  cat > "$work/apt.conf" <<CONF
APT { Architecture "arm64"; Architectures { "arm64"; }; Install-Recommends "false"; Sandbox::User "root"; };
Dir { State "$work/apt"; State::status "$work/apt/status"; Cache "$work/apt"; };
Dir::Etc { sourcelist "$work/apt/sources.list"; sourceparts "/dev/null"; preferencesparts "/dev/null"; };
CONF
  export APT_CONFIG=$work/apt.conf
  apt-get -q update
  apt-get -q -y install --download-only libdnnl-dev pybind11-dev libstdc++-14-dev python3-dev python3-numpy \
    python3-mpi4py python3-lmdb python3-pil python3-h5py python3-psutil python3-tabulate python3-tqdm python3-matplotlib
  unset APT_CONFIG
  for folder in lib bin sbin; do ln -sfn usr/$folder "$root/$folder"; done
  for package in "$work"/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
  for library in blas lapack; do # which a postinst would link
    ln -sfn $library/lib$library.so.3 "$root/usr/lib/aarch64-linux-gnu/lib$library.so.3"
  done
  python3 -m pip download -q --no-deps -d "$work/wheels" --only-binary :all: --python-version 313 \
    --platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 protobuf crc32c
  for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$site"; done
  touch "$work/apt/done"
fi

printf '#!/bin/bash\nexec qemu-aarch64 -L %s -E PYTHONPATH=%s %s/usr/bin/python3.13 "$@"\n' "$root" "$site" "$root" \
  > "$work/python"
chmod +x "$work/python"
DNNL_ROOT=$root/usr cmake -S "$repo" -B "$work/build" -G Ninja -DENGINE_PACKAGE=engine.host \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_SYSROOT="$root" \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -Dpybind11_DIR="$root/usr/lib/cmake/pybind11" \
  -DPython_INCLUDE_DIR="$root/usr/include/python3.13" -DPython_EXECUTABLE="$work/python" -DPython_ROOT_DIR="$root/usr"
ninja -C "$work/build"

rm -rf "$site/engine"
cp -r "$repo"/{engine,nets,solvers,examples} "$site"
[ -e "$work/host/grpc_tools" ] || python3 -m pip install -q --target "$work/host" "grpcio-tools>=1.60"
PYTHONPATH=$work/host python3 "$repo/tools/build_proto.py" "$repo/proto/caffe.proto" "$site/engine/proto/caffe.desc"
rm -f "$site"/engine/host/_ext.*
cp "$work"/build/_ext.*.{so,json} "$site/engine/host"
sed -i "s#\"$root#\"#" "$site"/engine/host/_ext.*.json
cd "$site"
"$work/python" -m engine device_query
# Without a watchdog: its processes would be started as this machine's.
"$work/python" -m engine train --solver solvers/digits.prototxt --watchdog 0 --set max_iter=40 --set display=10
