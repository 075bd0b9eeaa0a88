//! Sizes of layers.

use crate::rng::SplitMix;

/// Where in an image a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// A distribution, a language's runtime: shared by many images.
    Base,
    /// The packages that an application needs.
    Middle,
    /// The application: new in every version.
    Top,
}

/// Sizes of what is fetched, by quantile; log-linear between. From the published counts: 6 % above
/// 64 MiB, 0.5 % above 256 MiB, 0.05 % above 1 GiB; two thirds below 1 MB.
const QUANTILES: [(f64, f64); 10] = [
    (0.0, 32.0),
    (0.1, 120.0),
    (0.3, 500.0),
    (0.5, 8e3),
    (0.65, 1e6),
    (0.83, 10.5e6),
    (0.9395, 67.1e6),
    (0.9948, 268.4e6),
    (0.999_46, 1.0737e9),
    (1.0, 4e9),
];

/// The size at a quantile, bytes.
fn at(quantile: f64) -> f64 {
    let above = QUANTILES.partition_point(|(q, _)| *q <= quantile).clamp(1, QUANTILES.len() - 1);
    let ((low, from), (high, to)) = (QUANTILES[above - 1], QUANTILES[above]);
    from * (to / from).powf((quantile - low) / (high - low))
}

/// A layer's size, bytes.
pub(super) fn size(role: Role, rng: &mut SplitMix) -> u64 {
    // Bases are what is large, and versions what is many: blobs that are pushed have a mean of 6.9 MB
    // in dal, those that are fetched one of 14.4.
    let tilt = match role {
        Role::Base => 0.5,
        Role::Middle => 1.5,
        Role::Top => 2.0,
    };
    at(rng.unit().powf(tilt)) as u64
}
