//! Every BPF object passes the verifier of the kernel that this runs on.
//!
//! Without root the test says so and passes. An object for what a kernel does not have is left
//! out there, by what the kernel's own type information (BTF) names.

use std::fs;

use libbpf_rs::{ObjectBuilder, PrintLevel};

// `OBJECTS`: name and content of each object that build.rs has compiled.
include!(concat!(env!("OUT_DIR"), "/objects.rs"));

/// A type that an object names, and what a kernel names that takes such an object.
const NEEDS: [(&str, &str); 1] = [("Qdisc_ops", "bpf_struct_ops_Qdisc_ops")];

/// An object that calls functions of a module, which `weir-bpf` loads only if the module is there.
const CONNTRACK: &str = "download_conntrack";

#[test]
fn every_object_passes_the_verifier() {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: loading BPF programs needs root");
        return;
    }
    // The verifier's words, where a test's output is looked for.
    libbpf_rs::set_print(Some((PrintLevel::Warn, |_, text| print!("{text}"))));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux tells its release");
    let types = fs::read("/sys/kernel/btf/vmlinux").unwrap_or_default();
    let mut refused = Vec::new();
    for (name, content) in OBJECTS {
        let missing = NEEDS.iter().find(|(ours, theirs)| names(content, ours) && !names(&types, theirs));
        if let Some((_, missing)) = missing {
            println!("{name}: not for kernel {}, which has no {missing}", kernel.trim());
            continue;
        }
        // The function is of the kernel or of a module, whose type information is a file of its own.
        let module = fs::read("/sys/kernel/btf/nf_conntrack").unwrap_or_default();
        let has_lookup = names(&types, "bpf_skb_ct_lookup") || names(&module, "bpf_skb_ct_lookup");
        if name == CONNTRACK && !has_lookup {
            println!("SKIPPED: {name}: kernel {} has no bpf_skb_ct_lookup (nf_conntrack)", kernel.trim());
            continue;
        }
        match programs(content) {
            Ok(programs) => println!("{name}: kernel {} takes {}", kernel.trim(), programs.join(", ")),
            Err(why) => refused.push(format!("{name}: {why}")),
        }
    }
    assert!(refused.is_empty(), "kernel {} refuses {refused:?}", kernel.trim());
}

/// Loads an object; its programs with their lengths.
fn programs(object: &[u8]) -> Result<Vec<String>, libbpf_rs::Error> {
    let loaded = ObjectBuilder::default().open_memory(object)?.load()?;
    let one = |program: libbpf_rs::Program<'_>| {
        format!("{} ({} instructions)", program.name().to_string_lossy(), program.insn_cnt())
    };
    Ok(loaded.progs().map(one).collect())
}

/// Whether type information has exactly this name: names stand between zeros.
fn names(types: &[u8], name: &str) -> bool {
    let name = format!("\0{name}\0").into_bytes();
    types.windows(name.len()).any(|window| window == name)
}
