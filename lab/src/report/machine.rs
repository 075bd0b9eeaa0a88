use std::fs;

use serde::{Deserialize, Serialize};

/// The machine of a run, as far as it matters for the comparison of figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The model name in /proc/cpuinfo.
    pub(crate) cpu: String,
    /// Processors that this process may use.
    pub(crate) cores: usize,
    /// Memory, MB.
    pub(crate) memory_mb: u64,
    /// Load average of the last minute at the time of the report; a busy machine adds noise.
    pub(crate) load: String,
}

impl Machine {
    /// The machine that this process runs on.
    #[must_use]
    pub(crate) fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mb: field(&read("/proc/meminfo"), "MemTotal")
                .and_then(|kb| kb.split_whitespace().next()?.parse::<u64>().ok())
                .map_or(0, |kb| kb * 1024 / 1_000_000),
            load: read("/proc/loadavg").split_whitespace().next().unwrap_or("?").to_owned(),
        }
    }
}

/// The kernel's release, as `uname -r` prints it.
pub(crate) fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_from_proc() {
        assert_eq!(field("processor\t: 0\nmodel name\t: Big CPU\n", "model name"), Some("Big CPU".into()));
        let here = Machine::here();
        assert!(here.cores >= 1 && here.memory_mb > 0 && !here.cpu.is_empty(), "{here:?}");
        assert!(!kernel().is_empty());
    }
}
