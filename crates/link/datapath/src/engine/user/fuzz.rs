//! Frames as a tap gives them, for the fuzz targets.

use super::packet::Packet;

/// A frame, cut into pieces of at most `segments` segments. The pieces carry all of its bytes, and the
/// bytes on the wire are those that were announced.
///
/// # Panics
/// They do not, or the frame never ends.
pub fn cut(frame: &[u8], segments: usize) {
    let mut packet = Packet::new();
    let filled: Result<(), ()> = packet.fill(|memory| {
        let len = frame.len().min(memory.len());
        memory[..len].copy_from_slice(&frame[..len]);
        Ok(len)
    });
    assert_eq!(filled, Ok(()));
    let single = packet.single().map(<[u8]>::len);
    let announced = packet.left();
    let (mut payload, mut pieces, mut wire) = (0, 0, 0);
    loop {
        let next = packet.wire(segments);
        let piece = packet.cut(segments);
        payload += piece.payload.len();
        pieces += 1;
        wire += next;
        assert!(piece.segments >= 1 && pieces <= 70_000, "{pieces} pieces");
        if piece.is_last {
            break;
        }
        assert!(!piece.payload.is_empty());
    }
    match single {
        Some(len) => assert_eq!((len, pieces), (frame.len(), 1)),
        None => assert!(payload > 0 && payload < frame.len()),
    }
    assert_eq!(wire, announced);
}
