//! The layers that images share, and the size of each.

use std::collections::BTreeMap;

use serde::Deserialize;

/// An entry of `GET /images/ID/history`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct History {
    #[serde(default)]
    size: i64,
    #[serde(default)]
    created_by: String,
}

/// The instructions of a Dockerfile that make a layer.
const MAKES_LAYER: [&str; 4] = ["RUN", "COPY", "ADD", "WORKDIR"];

impl History {
    /// Whether the entry's instruction makes a layer, also an empty one. Builders write the instruction in
    /// front, or a shell's command line.
    fn may_be_layer(&self) -> bool {
        if self.size > 0 {
            return true;
        }
        match self.created_by.split_once("#(nop)") {
            Some((_, instruction)) => {
                MAKES_LAYER.iter().any(|word| instruction.trim_start().starts_with(word))
            }
            None => {
                let line = self.created_by.trim_start();
                line.starts_with("/bin/sh -c") || MAKES_LAYER.iter().any(|word| line.starts_with(word))
            }
        }
    }
}

/// The sizes of an image's layers, the lowest first; none if the history does not tell. Docker does not say
/// which entries have a layer, and a layer may have no bytes.
///
/// * `history`: the latest entry first.
/// * `count`: the number of layers.
pub(super) fn layer_sizes(history: &[History], count: usize) -> Option<Vec<u64>> {
    let sizes = |is_layer: fn(&History) -> bool| {
        let layers = history.iter().rev().filter(|entry| is_layer(entry));
        let sizes: Vec<u64> = layers.map(|entry| u64::try_from(entry.size).unwrap_or(0)).collect();
        (sizes.len() == count).then_some(sizes)
    };
    sizes(|entry| entry.size > 0).or_else(|| sizes(History::may_be_layer))
}

/// Numbers for layers. A layer is the same only above the same layers.
#[derive(Debug, Default)]
pub(super) struct Chains {
    numbers: BTreeMap<(u64, String), u64>,
    sizes: BTreeMap<u64, u64>,
    last: u64,
}

impl Chains {
    /// A number that no other layer has.
    pub(super) fn own(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn numbers_of(&mut self, diffs: &[String]) -> Vec<u64> {
        let mut below = 0;
        let mut numbers = Vec::with_capacity(diffs.len());
        for diff in diffs {
            let key = (below, diff.clone());
            below = match self.numbers.get(&key) {
                Some(number) => *number,
                None => {
                    let number = self.own();
                    self.numbers.insert(key, number);
                    number
                }
            };
            numbers.push(below);
        }
        numbers
    }

    /// The number of layers that are known.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Numbers an image's layers, the lowest first.
    ///
    /// * `sizes`: of each, if they are known.
    pub(super) fn learn(&mut self, diffs: &[String], sizes: Option<&[u64]>) -> Vec<u64> {
        let numbers = self.numbers_of(diffs);
        for (number, size) in numbers.iter().zip(sizes.unwrap_or_default()) {
            self.sizes.insert(*number, *size);
        }
        numbers
    }

    /// Each number with the size of its layer; zero for an unknown size.
    pub(super) fn layers(&self, numbers: &[u64]) -> Vec<(u64, u64)> {
        numbers.iter().map(|number| (*number, self.sizes.get(number).copied().unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(entries: &[(&str, i64)]) -> Vec<History> {
        entries.iter().map(|(by, size)| History { size: *size, created_by: (*by).to_owned() }).collect()
    }

    /// The latest entry is first, as Docker writes it.
    #[test]
    fn layer_without_bytes_is_told_from_an_entry_without_layer() {
        let built = history(&[
            ("CMD [\"app\"]", 0),
            ("COPY app / # buildkit", 500),
            ("WORKDIR /srv", 0),
            ("ENV A=b", 0),
            ("RUN /bin/sh -c true # buildkit", 0),
            ("/bin/sh -c #(nop)  CMD [\"bash\"]", 0),
            ("/bin/sh -c #(nop) ADD file:1 in / ", 9000),
        ]);
        assert_eq!(layer_sizes(&built, 4), Some(vec![9000, 0, 0, 500]));
        assert_eq!(layer_sizes(&built, 2), Some(vec![9000, 500]), "the builder left both out");
        assert_eq!(layer_sizes(&built, 3), None, "it cannot be told which");
        assert_eq!(layer_sizes(&[], 1), None);
        assert_eq!(layer_sizes(&[], 0), Some(vec![]));
    }

    #[test]
    fn layer_is_the_same_only_above_the_same_layers() {
        let diffs = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let mut chains = Chains::default();
        let one = chains.learn(&diffs(&["base", "app"]), Some(&[100, 10]));
        let two = chains.learn(&diffs(&["app"]), None);
        assert_eq!(chains.learn(&diffs(&["base", "app", "more"]), None)[..2], one);
        assert_eq!(chains.layers(&one), [(one[0], 100), (one[1], 10)]);
        assert_ne!(one[1], two[0]);
        assert_eq!(chains.layers(&two), [(two[0], 0)], "its size is not known");
        assert_eq!(chains.len(), 4);
        let own = chains.own();
        assert!(one.iter().chain(&two).all(|number| *number != own));
    }
}
