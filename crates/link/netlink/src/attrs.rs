//! Netlink attributes as bytes: `{u16 len, u16 type, value, padding to 4}` (linux/netlink.h).

use netlink_packet_core::NlasIterator;

/// A buffer to which attributes are appended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attrs(Vec<u8>);

impl Attrs {
    /// A buffer that begins with a message's fixed header.
    #[must_use]
    pub fn after(header: &[u8]) -> Attrs {
        Attrs(header.to_vec())
    }

    /// Appends an attribute of raw bytes.
    pub fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let len = u16::try_from(value.len() + 4).expect("netlink attributes are shorter than 64 KiB");
        self.0.extend_from_slice(&len.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends a `u32`.
    pub(crate) fn put_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Appends a `u64`.
    pub(crate) fn put_u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Appends a string with its terminating zero.
    pub(crate) fn put_str(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes)
    }

    /// Appends an attribute that holds attributes.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attrs)) -> &mut Self {
        let mut inner = Attrs::default();
        fill(&mut inner);
        self.put(kind, &inner.0)
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The attributes of a buffer, as `(type without flags, value)`; stops at the first that is
/// cut short.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(bytes).map_while(Result::ok).map(|nla| {
        let len = nla.value_length();
        // The iterator's items borrow the whole rest of the buffer.
        (nla.kind(), &nla.into_inner()[4..4 + len])
    })
}

/// The first four bytes as a `u32`; zero if there are fewer.
pub(crate) fn u32_of(value: &[u8]) -> u32 {
    value.get(..4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
}

/// The first eight bytes as a `u64`; zero if there are fewer.
pub(crate) fn u64_of(value: &[u8]) -> u64 {
    value.get(..8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight bytes")))
}

/// A zero-terminated string.
pub(crate) fn str_of(value: &[u8]) -> String {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_read_back_as_written() {
        let mut attrs = Attrs::default();
        attrs.put_str(1, "htb").nest(2, |o| {
            o.put_u32(5, 7).put(6, &[1, 2, 3]);
        });
        let bytes = attrs.into_bytes();
        let outer: Vec<_> = attributes(&bytes).collect();
        assert_eq!(outer.len(), 2);
        assert_eq!(str_of(outer[0].1), "htb");
        let inner: Vec<_> = attributes(outer[1].1).collect();
        assert_eq!(inner, vec![(5, &7u32.to_ne_bytes()[..]), (6, &[1u8, 2, 3][..])]);
    }

    #[test]
    fn a_truncated_buffer_ends_the_iteration() {
        assert_eq!(attributes(&[9, 0, 1, 0, 1]).count(), 0);
    }
}
