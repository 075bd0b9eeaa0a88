//! Virtual machines of libvirt, by the files in which its QEMU driver keeps the state of each domain that runs.
//!
//! The driver writes `/run/libvirt/qemu/NAME.xml` when a domain starts or changes, and removes it when the domain
//! ends (`virDomainObjSave`, `src/conf/domain_conf.c`). Only root may write there. The file has the domain's
//! name, its UUID, its metadata, and the host's end of each of its interfaces.
//!
//! A policy is an element of the metadata, whose attributes are named as labels without `weir.`:
//! `virsh metadata web --uri urn:weir:policy:1 --key weir --set '<policy weight="3" down.max="5mbit"/>'`.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    path::Path,
};

use quick_xml::{
    NsReader, XmlVersion,
    events::{BytesStart, Event},
    name::{Namespace, ResolveResult},
};

use crate::{BadLabel, Found, Location, Source, Warning, labels};

/// The directory of the state files.
pub const STATE_DIR: &str = "/run/libvirt/qemu";
/// The namespace of a policy in a domain's metadata.
pub const POLICY: &str = "urn:weir:policy:1";
/// All that a policy can ask for.
const KEYS: [&str; 7] = ["weight", "min", "max", "group", "down.weight", "down.min", "down.max"];
/// The longest state file that is read, bytes.
const LONGEST: u64 = 4 << 20;
/// The most interfaces of a domain, and the most attributes of a policy.
const MOST: usize = 64;

/// The domains that run, by name, and notices about those that are left out.
#[must_use]
pub fn scan() -> (Vec<Found>, Vec<Warning>) {
    domains(Path::new(STATE_DIR))
}

fn domains(dir: &Path) -> (Vec<Found>, Vec<Warning>) {
    let (mut found, mut warnings) = (Vec::new(), Vec::new());
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension() == Some(OsStr::new("xml")))
        .collect();
    paths.sort();
    for path in paths {
        let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match text(&path).and_then(|text| Domain::read(&text)) {
            Ok(domain) => found.push(sender(domain)),
            Err(why) => {
                let why = format!("cannot read {}: {why}", path.display());
                warnings.push(Warning::NoDomain { domain: file, why });
            }
        }
    }
    (found, warnings)
}

fn text(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|e| e.to_string())?;
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > LONGEST { Err(format!("it is longer than {LONGEST} bytes")) } else { Ok(text) }
}

/// A state file's content, as far as it matters.
#[derive(Debug, Default, PartialEq, Eq)]
struct Domain {
    name: String,
    uuid: String,
    interfaces: Vec<String>,
    /// The policy's attributes, as labels.
    labels: BTreeMap<String, String>,
}

impl Domain {
    fn read(text: &str) -> Result<Domain, String> {
        let mut reader = NsReader::from_str(text);
        let mut domain = Domain::default();
        // Names of the elements around a place, from the one below `domstatus` on.
        let mut path: Vec<String> = Vec::new();
        loop {
            let event = reader.read_event().map_err(|e| e.to_string())?;
            match &event {
                Event::Start(element) => {
                    path.push(element.local_name().as_ref().to_owned());
                    domain.look_at(&reader, &path, element)?;
                }
                Event::Empty(element) => {
                    path.push(element.local_name().as_ref().to_owned());
                    domain.look_at(&reader, &path, element)?;
                    path.pop();
                }
                Event::End(_) => drop(path.pop()),
                Event::Text(text) => {
                    let into = match words(&path)[..] {
                        ["domstatus", "domain", "name"] => &mut domain.name,
                        ["domstatus", "domain", "uuid"] => &mut domain.uuid,
                        _ => continue,
                    };
                    into.push_str(text);
                }
                Event::GeneralRef(reference) => {
                    if let ["domstatus", "domain", "name"] = words(&path)[..] {
                        let text = quick_xml::escape::resolve_predefined_entity(reference);
                        domain.name.push_str(text.unwrap_or("?"));
                    }
                }
                Event::Eof => break,
                _ => {}
            }
        }
        if let Some(open) = path.last() {
            return Err(format!("it ends within element {}", labels::brief(open)));
        }
        if domain.name.is_empty() || domain.uuid.is_empty() {
            return Err("it names no domain".to_owned());
        }
        Ok(domain)
    }

    fn look_at(
        &mut self,
        reader: &NsReader<&[u8]>,
        path: &[String],
        element: &BytesStart<'_>,
    ) -> Result<(), String> {
        match words(path)[..] {
            ["domstatus", "domain", "devices", "interface", "target"] if self.interfaces.len() < MOST => {
                let all = attributes(element)?;
                self.interfaces
                    .extend(all.into_iter().find(|(key, _)| key == "dev").map(|(_, device)| device));
            }
            ["domstatus", "domain", "metadata", "policy"]
                if reader.resolver().resolve_element(element.name()).0
                    == ResolveResult::Bound(Namespace(POLICY)) =>
            {
                let own = attributes(element)?.into_iter().filter(|(key, _)| !key.starts_with("xmlns"));
                self.labels.extend(own.map(|(key, value)| (format!("weir.{key}"), value)));
            }
            _ => {}
        }
        Ok(())
    }
}

fn words(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

fn attributes(element: &BytesStart<'_>) -> Result<Vec<(String, String)>, String> {
    let read = |attribute: quick_xml::events::attributes::Attribute<'_>| {
        let key = attribute.key.as_ref().to_owned();
        let value = attribute.normalized_value(XmlVersion::Implicit1_0).map_err(|e| e.to_string())?;
        Ok((key, value.into_owned()))
    };
    element.attributes().take(MOST).map(|attribute| read(attribute.map_err(|e| e.to_string())?)).collect()
}

fn sender(domain: Domain) -> Found {
    let (policy, group, bad) = labels::parse(&domain.labels);
    let remark = |bad: &BadLabel| {
        let key = bad.label.trim_start_matches("weir.");
        format!(
            "{}={:?} of the domain's metadata is ignored: {}",
            labels::brief(key),
            labels::brief(&bad.value),
            bad.why
        )
    };
    let location = Location::Interfaces(domain.interfaces);
    Found {
        remarks: bad.iter().map(remark).collect(),
        labels: domain.labels,
        policy,
        group,
        asked_by: KEYS.map(|key| (key, "the domain's metadata".to_owned())).into(),
        ..Found::new(domain.uuid, domain.name, Source::Libvirt, location)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libvirt 9.0 writes it, cut to what is different from domain to domain.
    const WEB: &str = r#"<!--
WARNING: THIS IS AN AUTO-GENERATED FILE.
-->
<domstatus state='running' reason='booted' pid='4711'>
  <taint flag='high-privileges'/>
  <monitor path='/var/lib/libvirt/qemu/domain-1-web/monitor.sock' type='unix'/>
  <domain type='qemu' id='1'>
    <name>web &amp; shop</name>
    <uuid>3f2e8b9c-0000-4000-8000-000000000001</uuid>
    <metadata>
      <weir:policy xmlns:weir="urn:weir:policy:1" weight="3" max="20mbit" down.max="5mbit" group="tenant-a"/>
      <other:policy xmlns:other="urn:other" weight="9" min="1gbit"/>
    </metadata>
    <devices>
      <disk type='file'><target dev='vda' bus='virtio'/></disk>
      <interface type='network'>
        <mac address='52:54:00:00:00:01'/>
        <source network='default' bridge='virbr0'/>
        <target dev='vnet0'/>
        <model type='virtio'/>
      </interface>
      <interface type='bridge'>
        <source bridge='br0'/>
        <target dev='vnet1'/>
      </interface>
      <interface type='user'/>
      <graphics type='vnc'><listen type='address' target='vnet9'/></graphics>
    </devices>
  </domain>
</domstatus>
"#;

    fn write(dir: &Path, name: &str, text: &str) {
        fs::write(dir.join(name), text).expect("a file");
    }

    #[test]
    fn domains_are_found_by_their_state_files() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), "web.xml", WEB);
        write(dir.path(), "web.xml.new", "half of a");
        write(dir.path(), "web.pid", "4711");
        let plain = WEB.replace("web &amp; shop", "db").replace("weight=\"3\"", "weight=\"0\"");
        write(dir.path(), "db.xml", &plain);
        for (name, text) in [
            ("cut.xml", &WEB[..WEB.len() / 2]),
            ("empty.xml", ""),
            ("other.xml", "<domain><name>a</name><uuid>b</uuid></domain>"),
        ] {
            write(dir.path(), name, text);
        }
        let (found, warnings) = domains(dir.path());
        let names: Vec<&str> = found.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["db", "web & shop"]);
        let web = &found[1];
        assert_eq!(web.id, "3f2e8b9c-0000-4000-8000-000000000001");
        assert_eq!(web.location, Location::Interfaces(vec!["vnet0".to_owned(), "vnet1".to_owned()]));
        assert_eq!(web.policy.weight.map(weir_share::Weight::get), Some(3));
        assert_eq!(web.policy.max, Some(weir_units::BitRate::mbit(20)));
        assert_eq!(web.policy.down.max, Some(weir_units::BitRate::mbit(5)));
        assert_eq!((web.policy.min, web.group.as_deref()), (None, Some("tenant-a")));
        assert_eq!(found[0].policy.weight, None);
        let said: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[0].contains("cut.xml: it ends within element "), "{said:?}");
        assert!(said[1].contains("empty.xml: it names no domain"), "{said:?}");
        assert!(said[2].contains("other.xml: it names no domain"), "{said:?}");
        let [remark] = &found[0].remarks[..] else { panic!("{:?}", found[0].remarks) };
        assert!(remark.starts_with("weight=\"0\" of the domain's metadata is ignored: "), "{remark}");
    }

    #[test]
    fn a_node_without_libvirt_has_no_domain() {
        let (found, warnings) = domains(Path::new("/nowhere/at/all"));
        assert_eq!((found, warnings), (Vec::new(), Vec::new()));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_domain_or_refused(text in "(<domstatus>|<domain>|<name>|</name>|</domain>|a|&amp;|&x;|<|\"|=|<!--|-->){0,24}") {
            if let Ok(domain) = Domain::read(&text) {
                proptest::prop_assert!(!domain.name.is_empty());
            }
        }
    }
}
