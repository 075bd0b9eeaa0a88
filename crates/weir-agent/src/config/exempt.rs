//! `[link] exempt`: networks beside the link's device, whose packets do not cross the line.

use std::{collections::BTreeSet, fmt};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

use super::network;

const ON_LINK: &str = "on-link";

/// Networks whose packets leave and arrive by the link's device, and do not cross the line behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Exempt {
    /// The networks of the device's own addresses too.
    pub(crate) is_on_link: bool,
    pub(crate) networks: BTreeSet<IpNet>,
}

impl Exempt {
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_on_link && self.networks.is_empty()
    }

    fn add(&mut self, text: &str) -> Result<(), String> {
        if text == ON_LINK {
            self.is_on_link = true;
            return Ok(());
        }
        let net =
            network(text).map_err(|why| format!("{why}, or `{ON_LINK}` for the device's own networks"))?;
        if net.prefix_len() == 0 {
            return Err(format!(
                "`{text}` is each destination, and nothing would be shared: name the LAN's networks"
            ));
        }
        self.networks.insert(net.trunc());
        Ok(())
    }
}

impl fmt::Display for Exempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let on_link = self.is_on_link.then(|| ON_LINK.to_owned());
        let all: Vec<String> =
            on_link.into_iter().chain(self.networks.iter().map(IpNet::to_string)).collect();
        f.write_str(&all.join(", "))
    }
}

impl<'de> Deserialize<'de> for Exempt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Exempt, D::Error> {
        let mut exempt = Exempt::default();
        for text in Vec::<String>::deserialize(deserializer)? {
            exempt.add(&text).map_err(de::Error::custom)?;
        }
        Ok(exempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_as_networks_and_the_word_beside_them() {
        let mut exempt = Exempt::default();
        assert_eq!((exempt.is_empty(), exempt.to_string()), (true, "none".to_owned()));
        for text in ["192.168.1.77/24", "192.168.1.0/24", "10.9.8.7", "fd00::1/64", "on-link"] {
            exempt.add(text).unwrap();
        }
        assert!(!exempt.is_empty());
        assert_eq!(exempt.to_string(), "on-link, 10.9.8.7/32, 192.168.1.0/24, fd00::/64");
        for (text, why) in [
            ("0.0.0.0/0", "nothing would be shared"),
            ("::/0", "nothing would be shared"),
            ("lan", "cannot read `lan` as a network: write it as 10.0.0.0/8 or fd00::/8, or `on-link` for"),
            ("ON-LINK", "cannot read `ON-LINK`"),
            ("10.0.0.0/33", "cannot read"),
            ("", "cannot read ``"),
        ] {
            let said = exempt.add(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
