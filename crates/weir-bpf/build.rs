//! Compiles the BPF programs with clang and generates their Rust skeletons.

use std::{env, ffi::OsString, path::PathBuf, process::Command};

use libbpf_cargo::SkeletonBuilder;

/// clang-14's code for the kernel's newer features does not load; newest first.
const COMPILERS: [&str; 7] =
    ["clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang", "clang-15"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = "src/bpf/classify.bpf.c";
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed=src/bpf/intf.h");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").ok().or_else(|| {
        let works = |c: &&&str| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success());
        COMPILERS.iter().find(works).map(|c| (*c).to_owned())
    });
    let Some(clang) = clang else {
        panic!("no clang found to compile {source}: install clang-16 or later (`make deps`), or set CLANG")
    };
    // asm/types.h is under the multiarch directory on Debian and Ubuntu.
    let multiarch =
        format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default());
    let mut args: Vec<OsString> = vec![format!("-I{multiarch}").into(), "-Wall".into(), "-Werror".into()];
    if let Ok(headers) = env::var("DEP_BPF_INCLUDE") {
        args.push(format!("-I{headers}").into());
    }
    SkeletonBuilder::new()
        .source(source)
        .clang(clang)
        .clang_args(args)
        .build_and_generate(out.join("classify.skel.rs"))
        .unwrap_or_else(|error| panic!("cannot compile {source}: {error:#}"));
}
