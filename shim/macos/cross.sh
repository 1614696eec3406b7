#!/usr/bin/env bash
# The macOS side of Ferry, on Linux.
#
#   shim/macos/cross.sh build OUT    link the shim and the probe for arm64 macOS 13 into the folder OUT
#   shim/macos/cross.sh check        cargo check of the whole workspace for aarch64-apple-darwin
#
# sdk/ holds stubs that name the symbols which may be used of macOS's own libraries; linking against anything else
# fails. On a Mac none of this is needed: see ../README.md.
#
# FERRY_MACOS_TOOLCHAIN chooses the compiler: "rustup" (its aarch64-apple-darwin target and its own lld), "debian" (Debian's
# rustc-web and lld-22, unpacked but not installed, which build the standard library too), or by default the former
# if it can be had and else the latter. FERRY_ARTIFACTS is where packages are unpacked (default target/artifacts).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=aarch64-apple-darwin
packages=(rustc-web libstd-rust-web-dev libstd-rust-web-1.96 rust-web-src libllvm22 lld-22)

have_rustup() {
    command -v rustup >/dev/null || return 1
    rustup target list --installed | grep -qx "$target" || timeout 300 rustup target add "$target" >&2
}

use_rustup() {
    local sysroot host
    sysroot=$(rustc --print sysroot)
    host=$(rustc --print host-tuple 2>/dev/null || rustc -vV | sed -n 's/^host: //p')
    cargo=(cargo)
    build_std=()
    linker=$sysroot/lib/rustlib/$host/bin/rust-lld
}

use_debian() {
    local folder=${FERRY_ARTIFACTS:-$root/target/artifacts}/macos-toolchain
    if [ ! -e "$folder/complete" ]; then
        mkdir -p "$folder/packages" "$folder/unpacked"
        (cd "$folder/packages" && apt-get download -qq "${packages[@]}") ||
            { echo "cannot download: apt-get update && apt-get download ${packages[*]}" >&2; exit 1; }
        for package in "$folder"/packages/*.deb; do dpkg -x "$package" "$folder/unpacked"; done
        touch "$folder/complete"
    fi
    local usr=$folder/unpacked/usr
    export LD_LIBRARY_PATH=$usr/lib/$(uname -m)-linux-gnu:$usr/lib/llvm-22/lib
    # The compiler is a stable one; building the standard library asks for unstable options.
    export RUSTC=$usr/bin/rustc RUSTC_BOOTSTRAP=1
    cargo=(cargo)
    build_std=(-Zbuild-std=core,alloc,std,panic_abort,panic_unwind)
    linker=$usr/bin/ld64.lld-22
}

case ${FERRY_MACOS_TOOLCHAIN:-auto} in
    rustup) have_rustup && use_rustup ;;
    debian) use_debian ;;
    auto) if have_rustup; then use_rustup; else use_debian; fi ;;
    *) echo "FERRY_MACOS_TOOLCHAIN is '$FERRY_MACOS_TOOLCHAIN': want rustup, debian or nothing" >&2; exit 2 ;;
esac
# Cargo hands its own variables to the tests that call this script; none of them is for the build in here.
for name in $(compgen -e | grep -E '^CARGO_(PKG|MANIFEST|CRATE|BIN|FEATURE|CFG|TARGET_TMPDIR|PRIMARY)' || true); do unset "$name"; done
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
export MACOSX_DEPLOYMENT_TARGET=13.0
cd "$root"

build() {
    local out
    mkdir -p "$1"
    out=$(cd "$1" && pwd)
    export SDKROOT=$root/shim/macos/sdk CARGO_TARGET_DIR=$out/build CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER=$linker
    # The linker itself leaves out debugging entries (-S) and local symbols (-x). Paths of this machine stay out of what is
    # shipped.
    export CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS="-Clinker-flavor=ld64.lld -Clink-arg=-dead_strip_dylibs \
        -Clink-arg=-S -Clink-arg=-x \
        --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo --remap-path-prefix=$root=ferry --remap-path-prefix=$out=out"
    "${cargo[@]}" rustc --profile shim --target "$target" ${build_std[@]+"${build_std[@]}"} --package ferry-shim --lib \
        --crate-type cdylib --no-default-features -- -Clink-arg=-install_name -Clink-arg=@rpath/libferry_metal_shim.dylib
    "${cargo[@]}" build --profile shim --target "$target" ${build_std[@]+"${build_std[@]}"} \
        --package ferry-metal-capabilities
    cp "$out/build/$target/shim/libferry_metal_shim.dylib" "$out/build/$target/shim/metal-capabilities" "$out/"
}

case ${1:-} in
    build) build "${2:?where to: cross.sh build OUT}" ;;
    check)
        export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}/macos-check
        "${cargo[@]}" check --workspace --target "$target" ${build_std[@]+"${build_std[@]}"}
        ;;
    *) sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac
