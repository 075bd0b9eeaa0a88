//! Compiles the BPF programs with clang and generates their Rust skeletons.

use std::{env, ffi::OsString, path::PathBuf, process::Command};

use libbpf_cargo::SkeletonBuilder;

/// clang-14's code for the kernel's newer features does not load; newest first.
const COMPILERS: [&str; 7] =
    ["clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang", "clang-15"];

/// Objects: the folder of their feature, and the name of their source without `.bpf.c`.
const OBJECTS: [(&str, &str); 7] = [
    ("classify", "classify"),
    ("classify", "classify_check"),
    ("congestion", "congestion"),
    ("edt", "edt"),
    ("edt", "fill_check"),
    ("pacing", "pacing"),
    ("user", "user"),
];

/// Those that use all kinds of atomics, which kernels have from 5.12.
const ATOMIC: [&str; 1] = ["user"];

/// Objects that are opened as they are: their maps are laid out by hand, or one of two is taken.
const PLAIN: [(&str, &str); 5] = [
    ("download", "download"),
    ("download", "download_conntrack"),
    ("fair", "fair"),
    ("fair", "paper"),
    ("signals", "signals"),
];

/// Those of them that need no newer kernel than the classifier does.
const OLD: [&str; 3] = ["download", "download_conntrack", "signals"];

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let folders = [
        "src/classify",
        "src/common",
        "src/congestion",
        "src/credit",
        "src/download",
        "src/edt",
        "src/fair",
        "src/pacing",
        "src/signals",
        "src/user",
        "tests/user_space",
    ];
    for folder in folders {
        // A change of Rust alone compiles no program again.
        for file in std::fs::read_dir(folder).expect("each feature has its folder").flatten() {
            if file.path().extension().is_some_and(|e| e == "c" || e == "h") {
                println!("cargo:rerun-if-changed={}", file.path().display());
            }
        }
    }
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").ok().or_else(|| {
        let works = |c: &&&str| Command::new(c).arg("--version").output().is_ok_and(|o| o.status.success());
        COMPILERS.iter().find(works).map(|c| (*c).to_owned())
    });
    let Some(clang) = clang else {
        panic!(
            "no clang found to compile the BPF programs: install clang-16 or later (`make deps`), or set CLANG"
        )
    };
    // asm/types.h is under the multiarch directory of this machine on Debian and Ubuntu. It is the same for all
    // architectures, as are the programs but for byte order.
    let host = env::var("HOST").expect("cargo sets HOST");
    let multiarch = format!("/usr/include/{}", multiarch(&host));
    let mut args: Vec<OsString> =
        vec![format!("-I{multiarch}").into(), "-Isrc".into(), "-Wall".into(), "-Werror".into()];
    // The line information of a program names its sources. Builds in two directories give the same bytes.
    args.push("-fdebug-compilation-dir=.".into());
    if let Ok(headers) = env::var("DEP_BPF_INCLUDE") {
        args.push(format!("-I{headers}").into());
        args.push(format!("-ffile-prefix-map={headers}=libbpf").into());
    }
    for (feature, object) in OBJECTS {
        let source = format!("src/{feature}/{object}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{object}.bpf.o")))
            .clang(&clang)
            .clang_args(if ATOMIC.contains(&object) {
                [args.clone(), vec!["-mcpu=v3".into()]].concat()
            } else {
                args.clone()
            })
            .build_and_generate(out.join(format!("{object}.skel.rs")))
            .unwrap_or_else(|error| panic!("cannot compile {source}: {error:#}"));
    }
    for (feature, object) in PLAIN {
        let source = format!("src/{feature}/{object}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{object}.bpf.o")))
            .clang(&clang)
            .clang_args(if OLD.contains(&object) {
                args.clone()
            } else {
                // They need a kernel far newer than this instruction set (5.12), with all kinds of atomics.
                [args.clone(), vec!["-mcpu=v3".into()]].concat()
            })
            .build()
            .unwrap_or_else(|error| panic!("cannot compile {source}: {error:#}"));
    }
    // Programs as a part of the unit tests, and of them alone.
    for feature in ["fair", "edt", "sparse"] {
        let mut user = cc::Build::new();
        user.compiler(&clang)
            .file(format!("tests/user_space/{feature}.c"))
            .include("src")
            .include(&multiarch)
            .opt_level(2)
            .extra_warnings(false)
            .warnings_into_errors(true);
        if let Ok(headers) = env::var("DEP_BPF_INCLUDE") {
            user.include(headers);
        }
        user.cargo_metadata(false).compile(&format!("weir_{feature}_user"));
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    // For the test that loads them all.
    let list: String = OBJECTS
        .iter()
        .chain(&PLAIN)
        .map(|(_, object)| format!("(\"{object}\", include_bytes!(\"{object}.bpf.o\").as_slice()),\n"))
        .collect();
    let list = format!("const OBJECTS: [(&str, &[u8]); {}] = [\n{list}];\n", OBJECTS.len() + PLAIN.len());
    std::fs::write(out.join("objects.rs"), list).expect("cargo's directory can be written to");
}

/// Debian's name of one of Rust's targets: `arm-linux-gnueabihf` of `armv7-unknown-linux-gnueabihf`.
fn multiarch(target: &str) -> String {
    let processor = target.split('-').next().unwrap_or_default();
    let abi = target.rsplit('-').next().unwrap_or_default();
    let processor = if processor.starts_with("arm") { "arm" } else { processor };
    format!("{processor}-linux-{abi}")
}
