//! A trace as the registry would have logged it.

use std::io::Write;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{Trace, TraceError};
use crate::hash::{Set, mix};

/// Fields of a log beyond the trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WriteOptions {
    /// When the first deployment was.
    pub began: Timestamp,
    /// The part of the clients that keep nothing, and fetch all of an image each time; the
    /// others keep all.
    pub forgetful: f64,
}

impl Default for WriteOptions {
    /// From the day on which the published trace begins, with as many forgetful clients as there are
    /// in it, about.
    fn default() -> WriteOptions {
        WriteOptions { began: Timestamp::constant(1_497_916_800, 0), forgetful: crate::generate::FORGETFUL }
    }
}

/// As published, in the order of the published keys.
#[derive(Serialize)]
struct Record {
    host: String,
    #[serde(rename = "http.request.duration")]
    duration: f64,
    #[serde(rename = "http.request.method")]
    method: &'static str,
    #[serde(rename = "http.request.remoteaddr")]
    client: String,
    #[serde(rename = "http.request.uri")]
    uri: String,
    #[serde(rename = "http.request.useragent")]
    agent: &'static str,
    #[serde(rename = "http.response.status")]
    status: u16,
    #[serde(rename = "http.response.written")]
    written: u64,
    id: String,
    timestamp: String,
}

/// Whether the client keeps no layers.
pub(crate) fn forgets(client: u32, part: f64) -> bool {
    (mix(u64::from(client)) >> 11) as f64 / (1u64 << 53) as f64 >= 1.0 - part
}

/// Writes the JSON that [`super::RegistryReader`] reads: for each deployment a GET of the manifest
/// and of the layers that the client lacks. `watch` is told of every deployment.
///
/// Returns how many records that was.
///
/// # Errors
/// [`TraceError::Io`], [`TraceError::Json`] if the writer fails.
pub fn write_registry(
    trace: &Trace,
    options: WriteOptions,
    mut writer: impl Write,
    mut watch: impl FnMut(),
) -> Result<u64, TraceError> {
    let mut kept: Set<(u32, u32)> = Set::default();
    let mut records = 0u64;
    writer.write_all(b"[")?;
    for deployment in &trace.deployments {
        watch();
        let image = deployment.image;
        let name = format!("v2/{:08x}/{:08x}", mix(u64::from(image)) >> 32, image);
        let forgets = forgets(deployment.client, options.forgetful);
        let mut put = |uri: String, written: u64, after_ms: u64| -> Result<(), TraceError> {
            let at = deployment.at.as_millis() as i64 + after_ms as i64;
            let at = options.began + SignedDuration::from_millis(at);
            let record = Record {
                host: "77656972".to_owned(),
                duration: 0.05 + written as f64 / 1e7,
                method: "GET",
                client: format!("{:08x}", deployment.client),
                uri,
                agent: "docker/17.06.0-ce",
                status: 200,
                written,
                id: format!("{:010x}", mix(records) >> 24),
                timestamp: format!("{at:.3}"),
            };
            writer.write_all(if records == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut writer, &record)?;
            records += 1;
            Ok(())
        };
        put(format!("{name}/manifests/{image:08x}"), 900, 0)?;
        for (nth, blob) in (1..).zip(&*trace.images[image as usize]) {
            if forgets || kept.insert((deployment.client, *blob)) {
                put(format!("{name}/blobs/{blob:08x}"), trace.blobs[*blob as usize].0, nth)?;
            }
        }
    }
    writer.write_all(b"\n]\n")?;
    writer.flush()?;
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_units::Bytes;

    use super::{super::*, *};

    #[test]
    fn what_is_written_is_read_as_the_same_deployments() {
        let images: Vec<Box<[u32]>> = vec![Box::new([0, 1]), Box::new([0, 2])];
        let at = |s| Duration::from_secs(s);
        let deployment = |s, image, client| Deployment { at: at(s), image, client };
        let trace = Trace {
            blobs: [10, 2_000_000_000_000, 30].map(Bytes).to_vec(),
            images,
            deployments: vec![
                deployment(0, 0, 0),
                deployment(5, 1, 0),
                deployment(9, 1, 1),
                deployment(20, 0, 0),
            ],
        };
        let began = "2017-06-20T00:00:02.534Z".parse().unwrap();
        for (forgetful, want) in [(0.0, 9), (1.0, 12)] {
            let mut text = Vec::new();
            let records =
                write_registry(&trace, WriteOptions { began, forgetful }, &mut text, || {}).unwrap();
            assert_eq!(records, want, "a client that keeps layers fetches none twice");
            let mut reader = RegistryReader::default();
            reader.read(&text[..]).unwrap();
            assert_eq!(reader.skipped(), Skipped::default());
            let back = reader.finish().unwrap();
            let names = |trace: &Trace| -> Vec<Vec<Bytes>> {
                let sizes = |i: &[u32]| {
                    let mut sizes: Vec<_> = i.iter().map(|b| trace.blobs[*b as usize]).collect();
                    sizes.sort();
                    sizes
                };
                trace.images.iter().map(|image| sizes(image)).collect()
            };
            assert_eq!(names(&back), names(&trace));
            assert_eq!(back.deployments, trace.deployments);
        }
    }
}
