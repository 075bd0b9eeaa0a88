//! A kernel's modules: found by name, unpacked, with what the guest needs to load one when the
//! kernel or a test asks for it.
//!
//! Packages carry no `modules.dep` (depmod writes it when they are installed); what a module
//! needs, and by which names it is asked for, is in the module itself. Nothing is loaded
//! before it is wanted: a module costs a twentieth of a second.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{initramfs::Initramfs, kernel::Kernel, process::bytes};

/// The modules of weir's engines and their tests. Modules that a kernel lacks are left out: tests
/// say so.
const WANTED: &str = "bridge br_netfilter veth ifb dummy vxlan macvlan macvtap tun wireguard ppp_async 8021q bonding \
    sch_ingress sch_fq sch_fq_codel sch_cake sch_codel sch_htb sch_hfsc sch_tbf sch_prio sch_sfq sch_drr \
    sch_netem sch_mqprio sch_etf cls_bpf cls_u32 cls_matchall cls_fw cls_flower cls_basic \
    act_mirred act_gact act_bpf act_police act_skbedit tcp_bbr tcp_diag udp_diag \
    nft_compat nft_chain_nat nft_ct xt_MASQUERADE xt_conntrack xt_mark";

/// The modules of container runtimes, for a root that has some.
pub(crate) const OF_RUNTIMES: &str = "overlay fuse xt_addrtype xt_comment xt_multiport xt_nat xt_tcpudp ipt_REJECT \
    nft_masq nft_nat nft_redir nft_reject_inet nft_fib_inet nft_numgen nft_limit nf_conntrack_netlink ip_tables ip6_tables \
    iptable_filter iptable_nat ip6table_filter ip6table_nat";

/// Puts these modules and [`WANTED`] into the guest, and a `modprobe` that knows them.
pub(crate) fn add_to(root: &mut Initramfs, kernel: &Kernel, more: &str) -> Result<()> {
    let mut found = BTreeMap::new();
    index(&kernel.modules.join("kernel"), &mut found)?;
    let mut unpacked = Vec::new();
    for name in WANTED.split_whitespace().chain(more.split_whitespace()) {
        add(name, &found, &mut unpacked)?;
    }
    root.add_text("modules/map", &map(&unpacked));
    root.add_text("usr/bin/modprobe", include_str!("modprobe.sh"));
    for module in unpacked {
        root.add(&format!("modules/{}.ko", module.name), 0o100_644, unsigned(module.content));
    }
    Ok(())
}

/// A module as the kernel takes it.
struct Module {
    name: String,
    content: Vec<u8>,
}

/// For each name by which a module may be asked for, a line: that name, then what to load, in
/// order. Modules are in an order in which each follows what it needs.
fn map(modules: &[Module]) -> String {
    let mut orders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut lines = String::new();
    for Module { name, content } in modules {
        let mut order = Vec::new();
        for needed in needs(content) {
            // A built-in module has no order.
            for earlier in orders.get(needed.as_str()).into_iter().flatten() {
                if !order.contains(earlier) {
                    order.push(*earlier);
                }
            }
        }
        order.push(name);
        for alias in std::iter::once(name.clone()).chain(said(content, "alias").iter().map(|a| normal(a))) {
            let _ = writeln!(lines, "{alias} {}", order.join(" "));
        }
        orders.insert(name, order);
    }
    lines
}

fn add(name: &str, found: &BTreeMap<String, PathBuf>, modules: &mut Vec<Module>) -> Result<()> {
    // Built in, or not in this kernel.
    let Some(path) = found.get(name) else { return Ok(()) };
    if modules.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let content = decompress(path)?;
    for needed in needs(&content) {
        add(&needed, found, modules)?;
    }
    modules.push(Module { name: name.to_owned(), content });
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

/// Names of the modules that one needs.
fn needs(module: &[u8]) -> Vec<String> {
    let lists = said(module, "depends");
    let names = lists.iter().flat_map(|list| list.split(',')).filter(|name| !name.is_empty());
    names.map(normal).collect()
}

/// Values after `key=` in a module's `.modinfo`, a list of strings that end in zero.
fn said(module: &[u8], key: &str) -> Vec<String> {
    let key = format!("\0{key}=").into_bytes();
    let at = module.windows(key.len()).enumerate().filter(|(_, window)| *window == key);
    at.map(|(at, _)| {
        let value = module[at + key.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    })
    .collect()
}

/// The name as the kernel compares it.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// A module without the signature at its end, whose check would take the guest longer than
/// all else about loading it.
fn unsigned(mut module: Vec<u8>) -> Vec<u8> {
    const END: &[u8] = b"~Module signature appended~\n";
    // Before the mark: twelve bytes, of which the last four are the signature's length.
    const TRAILER: usize = 12;
    if let Some(signed) = module.strip_suffix(END)
        && let Some(length) = signed.last_chunk::<4>()
    {
        let signature = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if let Some(rest) = signed.len().checked_sub(signature.saturating_add(TRAILER)) {
            module.truncate(rest);
        }
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str, info: &str) -> Module {
        Module { name: name.to_owned(), content: format!("ELF\0license=GPL\0{info}\0").into_bytes() }
    }

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
        let mut modules = Vec::new();
        add("bridge", &found, &mut modules).expect("all are there");
        add("not_there", &found, &mut modules).expect("built in");
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["llc", "stp", "x_y", "bridge"]);
    }

    #[test]
    fn a_module_is_found_by_its_name_and_by_its_aliases() {
        let modules = [
            module("llc", "depends="),
            module("stp", "depends=llc,built_in"),
            module("sch_x", "alias=net-sch-x\0depends=stp,llc"),
        ];
        assert_eq!(map(&modules), "llc llc\nstp llc stp\nsch_x llc stp sch_x\nnet_sch_x llc stp sch_x\n");
    }

    #[test]
    fn a_signature_is_taken_off_and_a_module_without_one_stays_as_it_is() {
        let mut signed = b"ELF and more".to_vec();
        signed.extend([7; 20]);
        signed.extend([0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 20]);
        signed.extend(b"~Module signature appended~\n");
        assert_eq!(unsigned(signed), b"ELF and more");
        assert_eq!(unsigned(b"ELF and more".to_vec()), b"ELF and more");
    }
}
