//! A kernel's modules: found by name, unpacked, in the order in which they can be loaded.
//!
//! Packages carry no `modules.dep` (depmod writes it when they are installed); what a module
//! needs is in the module itself.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{kernel::Kernel, process::bytes};

/// What weir's engines and their tests use. What a kernel lacks is left out: tests say so.
const WANTED: [&str; 41] = [
    "stp",
    "llc",
    "bridge",
    "br_netfilter",
    "veth",
    "ifb",
    "dummy",
    "vxlan",
    "macvlan",
    "tun",
    "sch_ingress",
    "sch_fq",
    "sch_fq_codel",
    "sch_cake",
    "sch_codel",
    "sch_htb",
    "sch_hfsc",
    "sch_tbf",
    "sch_prio",
    "sch_sfq",
    "sch_drr",
    "sch_netem",
    "sch_mqprio",
    "sch_etf",
    "cls_bpf",
    "cls_u32",
    "cls_matchall",
    "cls_fw",
    "cls_flower",
    "cls_basic",
    "act_mirred",
    "act_gact",
    "act_bpf",
    "act_police",
    "act_skbedit",
    "tcp_bbr",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    "nf_conntrack",
    "nf_tables",
];

/// Modules by name, in an order in which each follows what it needs.
pub(crate) fn unpack(kernel: &Kernel) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = BTreeMap::new();
    index(&kernel.modules.join("kernel"), &mut found)?;
    let mut loaded = Vec::new();
    for name in WANTED {
        add(name, &found, &mut loaded)?;
    }
    Ok(loaded)
}

fn add(name: &str, found: &BTreeMap<String, PathBuf>, loaded: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    // Built in, or not in this kernel.
    let Some(path) = found.get(name) else { return Ok(()) };
    if loaded.iter().any(|(other, _)| other == name) {
        return Ok(());
    }
    let module = decompress(path)?;
    for needed in needs(&module) {
        add(&needed, found, loaded)?;
    }
    loaded.push((name.to_owned(), module));
    Ok(())
}

/// Files of modules below a directory, by the module's name.
fn index(dir: &Path, found: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            index(&path, found)?;
        } else if let Some((name, _)) =
            path.file_name().and_then(|n| n.to_str()).and_then(|n| n.split_once(".ko"))
        {
            found.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn decompress(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("ko") => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
        _ => bail!("{} is compressed in a way unknown here: xz and zstd are known", path.display()),
    };
    bytes(Command::new(program).arg("-dcq").arg(path))
}

/// Names after `depends=` in a module's `.modinfo`, a list of strings that end in zero.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let rest = &module[at + KEY.len()..];
    let value = rest.split(|&byte| byte == 0).next().unwrap_or_default();
    let names = String::from_utf8_lossy(value);
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_follows_what_it_needs_and_what_that_needs() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut found = BTreeMap::new();
        for (name, depends) in [("bridge", "stp,x-y"), ("stp", "llc"), ("llc", ""), ("x_y", "llc")] {
            let path = dir.path().join(format!("{name}.ko"));
            fs::write(&path, format!("ELF\0license=GPL\0depends={depends}\0name={name}\0"))
                .expect("can write");
            found.insert(name.to_owned(), path);
        }
        let mut loaded = Vec::new();
        add("bridge", &found, &mut loaded).expect("all are there");
        add("not_there", &found, &mut loaded).expect("built in");
        let names: Vec<&str> = loaded.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["llc", "stp", "x_y", "bridge"]);
    }
}
