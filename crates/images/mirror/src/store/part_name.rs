//! Names of the files of downloads.

use std::{fmt, path::Path};

use crate::{Digest, scope::Mark};

/// The file of a download: `FENCE-SIZE-MARK-NODE` in the directory of its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartName {
    pub(super) digest: Digest,
    pub(super) fence: u64,
    /// Of all of it, bytes.
    pub(super) size: u64,
    pub(super) mark: Mark,
    pub(super) node: String,
}

impl PartName {
    /// None if it is called otherwise.
    pub(super) fn of(path: &Path) -> Option<PartName> {
        let digest = digest_of(path.parent()?)?;
        let (fence, rest) = path.file_name()?.to_str()?.split_once('-')?;
        let (size, rest) = rest.split_once('-')?;
        let (mark, node) = rest.split_once('-')?;
        let (fence, size) = (fence.parse().ok()?, size.parse().ok()?);
        Some(PartName { digest, fence, size, mark: Mark::read(mark)?, node: node.to_owned() })
    }
}

impl fmt::Display for PartName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}-{}", self.fence, self.size, self.mark, self.node)
    }
}

/// The digits tell the algorithm by their number.
pub(super) fn digest_of(dir: &Path) -> Option<Digest> {
    let hex = dir.file_name()?.to_str()?;
    let algorithm = if hex.len() == 128 { "sha512" } else { "sha256" };
    format!("{algorithm}:{hex}").parse().ok()
}
