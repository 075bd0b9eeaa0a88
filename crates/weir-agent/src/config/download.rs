//! The configuration as the download sees it.

use super::{ClassConfig, Config, Group, Layer, Link, Section};

impl Link {
    /// This link as the download sees it.
    pub(crate) fn of_download(&self) -> Option<Link> {
        let capacity = self.download?;
        Some(Link {
            capacity,
            follows: self.download_follows,
            download: None,
            download_follows: None,
            ..self.clone()
        })
    }
}

impl Config {
    /// The same classes with the policies of what arrives, on a link of the download's capacity. `None` if
    /// the download is not shared.
    ///
    /// Selectors are about what leaves: a class with `match` has no download.
    pub(crate) fn download(&self) -> Option<Config> {
        let link = self.link.of_download()?;
        let down = |section: Section| Section::from(section.down);
        let none = Layer::default();
        let group = |group: &Group| {
            let Layer { weight, min, max } = group.down;
            Group { weight, min, max, down: none, ..group.clone() }
        };
        let class = |class: &ClassConfig| {
            let Layer { weight, min, max } = class.down;
            ClassConfig { weight, min, max, down: none, ..class.clone() }
        };
        Some(Config {
            link,
            defaults: down(self.defaults),
            host: down(self.host),
            default: down(self.default),
            groups: self.groups.iter().map(group).collect(),
            classes: self.classes.iter().filter(|c| c.selectors.is_empty()).map(class).collect(),
            ..self.clone()
        })
    }

    /// The sections that have a policy of what arrives.
    pub(super) fn with_down(&self) -> impl Iterator<Item = (String, Layer)> {
        let own = [("defaults", self.defaults), ("host", self.host), ("default", self.default)];
        let own = own.into_iter().map(|(name, section)| (format!("[{name}]"), section.down));
        let groups = self.groups.iter().map(|group| (format!("[[group]] {}", group.name), group.down));
        let classes = self.classes.iter().map(|class| (format!("[[class]] {}", class.name), class.down));
        own.chain(groups).chain(classes).filter(|(_, layer)| !layer.is_empty())
    }
}
