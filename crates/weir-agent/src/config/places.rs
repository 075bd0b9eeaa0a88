//! The socket and the state of an agent whose configuration may be faulty.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Agent, ConfigError, parse, read};

/// The socket and the state directory of an agent.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) socket: PathBuf,
    pub(crate) state: PathBuf,
    /// The reason if the configuration cannot be used as a whole.
    pub(crate) fault: Option<ConfigError>,
}

/// The section `[agent]`, whatever else is in it.
#[derive(Debug, Default, Deserialize)]
struct Section {
    socket: Option<PathBuf>,
    state: Option<PathBuf>,
}

/// The places that a configuration names. Of a faulty file only the lines of `[agent]` count, and what they do not
/// name is where it usually is.
pub(crate) fn places(path: &Path) -> Places {
    let text = read(path);
    let parsed = text.as_ref().map(|text| parse(text, path));
    if let Ok(Ok(config)) = parsed {
        return Places { socket: config.agent.socket, state: config.agent.state, fault: None };
    }
    let section = text.as_ref().map_or(Section::default(), |text| section(text));
    let usual = Agent::default();
    Places {
        socket: section.socket.unwrap_or(usual.socket),
        state: section.state.unwrap_or(usual.state),
        fault: text.and_then(|text| parse(&text, path)).err(),
    }
}

/// Reads the lines of the section one by one, so that a fault of one costs no other.
fn section(text: &str) -> Section {
    let bare = |line: &str| line.split('#').next().unwrap_or_default().replace([' ', '\t'], "");
    let is_header = |line: &&str| line.trim_start().starts_with('[');
    let after = text.lines().skip_while(|line| bare(line) != "[agent]").skip(1);
    let mut section = Section::default();
    for line in after.take_while(|line| !is_header(line)) {
        let read: Section = toml::from_str(line).unwrap_or_default();
        section = Section { socket: read.socket.or(section.socket), state: read.state.or(section.state) };
    }
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_faulty_file_are_those_of_its_section_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weir.toml");
        let named = ("/x/weir.sock", "/x/state");
        let usual = ("/run/weir/weir.sock", "/var/lib/weir");
        let link = "[link]\ndevice = \"eth0\"\ncapacity = \"95mbit\"\n";
        let agent = "[agent]\nsocket = \"/x/weir.sock\"\nstate = \"/x/state\"\n";
        for (text, expected, is_good) in [
            (format!("{link}{agent}[discover]\ndocker = false\n"), named, true),
            (format!("{agent}{link}"), named, true),
            (format!("[link\ndevice =\n{agent}[[class]]\n"), named, false),
            (format!("{agent}size = 3\n"), named, false),
            (agent.replace("[agent]", " [ agent ] # of this node") + link, named, true),
            (format!("agent = {{ socket = \"/x/weir.sock\", state = \"/x/state\" }}\n{link}"), named, true),
            (agent.replace("[agent]", "[agent] # of this node\nsize ="), named, false),
            (agent.to_owned(), named, false),
            ("[agent]\nsocket = \n".to_owned(), usual, false),
            (link.to_owned(), usual, true),
            (String::new(), usual, false),
        ] {
            std::fs::write(&path, &text).unwrap();
            let places = places(&path);
            let found = (places.socket.to_str().unwrap(), places.state.to_str().unwrap());
            assert_eq!((found, places.fault.is_none()), (expected, is_good), "{text}");
        }
        let missing = super::places(&dir.path().join("nowhere.toml"));
        assert_eq!(missing.state, Path::new("/var/lib/weir"));
        assert!(matches!(missing.fault, Some(ConfigError::Missing { .. })));
    }
}
