//! The framing of the line behind the link.

use serde::{Deserialize, Deserializer};
use weir_datapath::engine;
use weir_units::{Cells, Framing};

use super::{
    Link, Split,
    fault::{Fault, fault},
};

/// Reads the name of a framing.
pub(super) fn preset<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Framing>, D::Error> {
    String::deserialize(deserializer)?.parse().map(Some).map_err(serde::de::Error::custom)
}

impl Link {
    /// The framing of the line, if the configuration tells it.
    pub(crate) fn line(&self) -> Option<Framing> {
        let Link { overhead, mpu, atm, .. } = *self;
        let own = || {
            let cells = if atm == Some(true) { Cells::Atm } else { Cells::None };
            let (overhead, mpu) = (overhead.unwrap_or(0), mpu.unwrap_or(0));
            Framing { overhead, mpu, cells, ..Framing::default() }
        };
        self.framing.or_else(|| (overhead.is_some() || mpu.is_some() || atm.is_some()).then(own))
    }
}

/// Checks the framing, and that the engine can charge it.
pub(super) fn check(link: &Link) -> Result<(), Fault> {
    let has_own = link.overhead.is_some() || link.mpu.is_some() || link.atm.is_some();
    if link.framing.is_some() && has_own {
        let detail = "it has overhead, mpu and atm of its own: write either the name or these";
        return Err(fault("[link] framing", detail));
    }
    let (least, most) = (Framing::MIN_OVERHEAD, Framing::MAX_BYTES);
    if let Some(overhead) = link.overhead.filter(|o| *o < least || *o > most.cast_signed()) {
        return Err(fault("[link] overhead", format!("{overhead} is not between {least} and {most} bytes")));
    }
    if let Some(mpu) = link.mpu.filter(|mpu| *mpu > most) {
        return Err(fault("[link] mpu", format!("{mpu} is not between 0 and {most} bytes")));
    }
    if link.line().is_none() {
        return Ok(());
    }
    let what = if link.framing.is_some() { "[link] framing" } else { "[link] overhead, mpu or atm" };
    if link.split == Split::Never {
        let detail =
            "it charges each packet, and split = \"never\" leaves super-packets whole: leave `split` out";
        return Err(fault(what, detail));
    }
    match link.choice() {
        Some(engine::Choice::Only(kind)) => kind.frames().map_err(|e| fault(what, e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use weir_units::{Cells, Framing};

    use crate::config::{Config, ConfigError, parse};

    fn link(lines: &str) -> Result<Config, ConfigError> {
        let text = format!("[link]\ndevice = \"eth0\"\ncapacity = \"9mbit\"\n{lines}\n");
        parse(&text, std::path::Path::new("test.toml"))
    }

    #[test]
    fn framing_has_a_name_or_numbers() {
        let line = |lines: &str| link(lines).unwrap().link.line();
        assert_eq!(line(""), None);
        let own = Framing { overhead: 44, mpu: 64, cells: Cells::Atm, ..Framing::default() };
        assert_eq!(line("overhead = 44\nmpu = 64\natm = true"), Some(own));
        assert_eq!(line("overhead = -4"), Some(Framing { overhead: -4, ..Framing::default() }));
        assert_eq!(line("framing = \"pppoe-ptm\"").unwrap().cells, Cells::Ptm);
        assert_eq!(line("framing = \"docsis\"\ndownload = \"50mbit\"").unwrap().overhead, 18);
    }

    #[test]
    fn framing_goes_with_each_engine_that_charges_packets() {
        for engine in ["auto", "htb", "bpf", "bpf-credit", "edt", "user"] {
            let lines = format!("framing = \"pppoe-ptm\"\nengine = \"{engine}\"");
            assert!(link(&lines).is_ok(), "{engine}: {:?}", link(&lines));
        }
    }

    #[test]
    fn framing_that_cannot_be_charged_is_refused_with_the_way_out() {
        for (lines, why) in [
            ("overhead = 257", "257 is not between -64 and 256 bytes"),
            ("overhead = -65", "-65 is not between -64 and 256 bytes"),
            ("mpu = 300", "300 is not between 0 and 256 bytes"),
            ("framing = \"pppoe\"", "there is no framing `pppoe`"),
            ("framing = \"docsis\"\nmpu = 64", "write either the name or these"),
            (
                "framing = \"docsis\"\nengine = \"pacing\"",
                "sockets that pace themselves count bytes and not packets",
            ),
            ("overhead = 44\nengine = \"pacing\"", "or \"htb\""),
            ("atm = true\nsplit = \"never\"", "leave `split` out"),
        ] {
            let error = weir_units::chain(&link(lines).unwrap_err());
            assert!(error.contains(why), "{lines}: {error}");
        }
    }
}
