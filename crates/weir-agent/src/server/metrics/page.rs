//! Writes families of metrics.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet, text::encode},
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::{Metric, Registry, Unit},
};
use weir_units::BitRate;

/// The unit of rates.
pub(super) const PER_SECOND: &str = "bytes_per_second";
/// The unit of sizes.
pub(super) const BYTES: &str = "bytes";
/// The unit of times.
pub(super) const SECONDS: &str = "seconds";
/// The unit of numbers without one.
pub(super) const NONE: &str = "";

/// A rate in bytes per second, as is usual in Prometheus.
pub(super) fn bytes_per_second(rate: BitRate) -> f64 {
    rate.0 as f64 / 8.0
}

/// 1 for yes, 0 for no.
pub(super) fn flag(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

/// All that a set of labels has to be.
pub(super) trait Labels:
    EncodeLabelSet + Clone + std::hash::Hash + Eq + std::fmt::Debug + Send + Sync + 'static
{
}
impl<L: EncodeLabelSet + Clone + std::hash::Hash + Eq + std::fmt::Debug + Send + Sync + 'static> Labels
    for L
{
}

/// Counted values.
#[derive(Debug)]
pub(super) struct Histogram {
    pub(super) sum: f64,
    /// The upper bound and the count of each bucket. Values below an earlier bound are not counted again. The last
    /// bound is infinite.
    pub(super) buckets: Vec<(f64, u64)>,
}

/// Histograms that were counted elsewhere.
#[derive(Debug)]
struct Histograms<L>(Vec<(L, Histogram)>);

impl<L: Labels> EncodeMetric for Histograms<L> {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), std::fmt::Error> {
        for (labels, Histogram { sum, buckets }) in &self.0 {
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut one = encoder.encode_family(labels)?;
            one.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// The metrics of one answer. Names have the prefix `weir_` and end with their unit.
pub(super) struct Page {
    registry: Registry,
    /// The names of all families, also of those without a sample. The text leaves these out.
    #[cfg(test)]
    pub(super) families: Vec<String>,
}

impl Page {
    pub(super) fn new() -> Page {
        Page {
            registry: Registry::with_prefix("weir"),
            #[cfg(test)]
            families: Vec::new(),
        }
    }

    /// A family of any type.
    pub(super) fn register(&mut self, name: impl Into<String>, unit: &str, help: &str, metric: impl Metric) {
        let name = name.into();
        #[cfg(test)]
        self.families.push(match unit {
            NONE => format!("weir_{name}"),
            unit => format!("weir_{name}_{unit}"),
        });
        match unit {
            NONE => self.registry.register(name, help, metric),
            unit => self.registry.register_with_unit(name, help, Unit::Other(unit.to_owned()), metric),
        }
    }

    /// Facts that do not change, as labels.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: impl Labels) {
        self.register(name, NONE, help, Info::new(labels));
    }

    pub(super) fn gauge(&mut self, name: &str, unit: &str, help: &str, value: f64) {
        let gauge = Gauge::<f64, AtomicU64>::default();
        gauge.set(value);
        self.register(name, unit, help, gauge);
    }

    pub(super) fn counter(&mut self, name: impl Into<String>, help: &str, value: u64) {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        self.register(name, NONE, help, counter);
    }

    /// One gauge for each set of labels.
    pub(super) fn gauges<L: Labels>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) {
        let family = Family::<L, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.register(name, unit, help, family);
    }

    /// One counter for each set of labels.
    pub(super) fn counters<L: Labels>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, u64)>,
    ) {
        let family = Family::<L, Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.register(name, unit, help, family);
    }

    /// One counter of a fraction for each set of labels.
    pub(super) fn counters_of_fractions<L: Labels>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) {
        let family = Family::<L, Counter<f64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.register(name, unit, help, family);
    }

    /// One histogram for each set of labels.
    pub(super) fn histograms<L: Labels>(
        &mut self,
        name: &str,
        unit: &str,
        help: &str,
        values: impl IntoIterator<Item = (L, Histogram)>,
    ) {
        self.register(name, unit, help, Histograms(values.into_iter().collect()));
    }

    /// The metrics as OpenMetrics' text.
    pub(super) fn openmetrics(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
