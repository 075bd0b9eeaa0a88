//! The image rotation service: HTTP on several ports, with a rotated picture as the answer.

use std::{
    convert::Infallible,
    ffi::OsString,
    net::{IpAddr, TcpListener},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::CONTENT_TYPE,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use image::{GrayImage, Luma, imageops::interpolate_bilinear};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::{net, sync::oneshot};
use weir_netlab::topology::Netns;

/// The consumers' request: the paper's r = 512x512 and alpha = 20.
pub(super) const REQUEST: &str = "/rotate?size=512&angle=20";
/// The largest picture that the service rotates, pixels a side.
const LARGEST: u32 = 4096;

/// A gray picture of `size` by `size` pixels, with rings and a gradient; always the same.
///
/// The paper's pictures lie on a RAM disk. Their content does not matter, because the service sends them
/// uncompressed.
#[must_use]
pub(crate) fn picture(size: u32) -> GrayImage {
    let middle = f64::from(size) / 2.0;
    GrayImage::from_fn(size, size, |x, y| {
        let (dx, dy) = (f64::from(x) - middle, f64::from(y) - middle);
        let rings = (dx.hypot(dy) / 8.0).sin() * 60.0;
        Luma([(128.0 + rings + f64::from(x) / f64::from(size) * 60.0) as u8])
    })
}

/// Rotates the picture clockwise by an angle in degrees about its middle.
///
/// The canvas has as many pixels as have their centres between the outermost ones of the rotated picture.
/// Pixels outside the picture are black.
///
/// A side of n pixels spans n - 1 from the first centre to the last. 512x512 at 20 degrees therefore has
/// floor(511 (cos 20 + sin 20)) + 1 = 655 pixels a side. 655^2 bytes are the paper's 419 KiB; one pixel more
/// a side would be 420.3.
#[must_use]
pub(crate) fn rotate(picture: &GrayImage, degrees: f32) -> GrayImage {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (spanned, tall) = (picture.width() as f32 - 1.0, picture.height() as f32 - 1.0);
    let side = |along: f32, across: f32| {
        let exact = along * cos.abs() + across * sin.abs();
        // The small addition compensates a float's rounding, which could drop a pixel.
        (exact + 1e-3).floor() as u32 + 1
    };
    let (width, height) = (side(spanned, tall), side(tall, spanned));
    let (from_x, from_y) = (spanned / 2.0, tall / 2.0);
    let (to_x, to_y) = ((width as f32 - 1.0) / 2.0, (height as f32 - 1.0) / 2.0);
    GrayImage::from_fn(width, height, |x, y| {
        let (dx, dy) = (x as f32 - to_x, y as f32 - to_y);
        let (x, y) = (cos * dx + sin * dy + from_x, cos * dy - sin * dx + from_y);
        interpolate_bilinear(picture, inside(x, spanned), inside(y, tall)).unwrap_or(Luma([0]))
    })
}

/// Moves a coordinate to the picture's edge if a float's rounding has put it just outside.
fn inside(at: f32, spanned: f32) -> f32 {
    let edge = at.clamp(0.0, spanned);
    if (at - edge).abs() < 1e-2 { edge } else { at }
}

/// The picture as a binary portable graymap, uncompressed; its header has 15 bytes at this size.
#[must_use]
pub(crate) fn encode(picture: &GrayImage) -> Vec<u8> {
    let mut bytes = format!("P5\n{} {}\n255\n", picture.width(), picture.height()).into_bytes();
    bytes.extend_from_slice(picture.as_raw());
    bytes
}

/// The service at work, until it is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Listens on these ports of `address`, in a namespace.
    ///
    /// # Errors
    /// If a port is taken, or no thread can be made.
    pub(crate) fn start(netns: &Netns, address: IpAddr, ports: &[u16]) -> Result<Service> {
        let mut listeners = Vec::with_capacity(ports.len());
        for &port in ports {
            let listener = netns
                .within(|| TcpListener::bind((address, port)))?
                .with_context(|| format!("cannot listen on {address}:{port}"))?;
            // The host's default algorithm may differ. Accepted sockets inherit this choice.
            setsockopt(&listener, sockopt::TcpCongestion, &OsString::from("cubic"))?;
            listener.set_nonblocking(true)?;
            listeners.push(listener);
        }
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(ports.len().max(1))
            .build()
            .context("cannot start the service")?;
        let thread = std::thread::Builder::new().name("service".to_owned()).spawn(move || {
            runtime.block_on(async {
                for listener in listeners {
                    tokio::spawn(accept(listener));
                }
                let _ = stopped.await;
            });
            runtime.shutdown_timeout(Duration::from_secs(1));
        })?;
        Ok(Service { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A dropped sender ends the service too.
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener) {
    let Ok(listener) = net::TcpListener::from_std(listener) else { return };
    // An error means that the connection was gone before it was accepted.
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // A consumer that leaves early is no failure of the service.
                let _ =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let asked = (request.uri().path() == "/rotate").then(|| parse(request.uri().query().unwrap_or_default()));
    let body = match asked.flatten() {
        Some((size, angle)) => {
            tokio::task::spawn_blocking(move || encode(&rotate(&picture(size), angle))).await.ok()
        }
        None => None,
    };
    let mut response = Response::new(Full::default());
    match body {
        Some(bytes) => {
            let kind = hyper::header::HeaderValue::from_static("image/x-portable-graymap");
            response.headers_mut().insert(CONTENT_TYPE, kind);
            *response.body_mut() = Full::new(Bytes::from(bytes));
        }
        None => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    Ok(response)
}

/// Parses `size=512&angle=20`: pixels a side, degrees.
fn parse(query: &str) -> Option<(u32, f32)> {
    let value = |name: &str| {
        query.split('&').find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name)).map(|p| p.1)
    };
    let size = value("size")?.parse().ok().filter(|size| (1..=LARGEST).contains(size))?;
    let angle: f32 = value("angle")?.parse().ok().filter(|angle: &f32| angle.is_finite())?;
    Some((size, angle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_papers_419_kib() {
        let turned = rotate(&picture(512), 20.0);
        assert_eq!(turned.dimensions(), (655, 655));
        let bytes = encode(&turned);
        assert!(bytes.starts_with(b"P5\n655 655\n255\n"));
        assert_eq!(bytes.len(), 655 * 655 + 15);
        assert_eq!((bytes.len() as f64 / 1024.0).round(), 419.0);
    }

    #[test]
    fn a_rotation_by_right_angles_moves_pixels_and_changes_none() {
        let one = GrayImage::from_fn(3, 2, |x, y| Luma([(10 * y + x) as u8 + 1]));
        assert_eq!(rotate(&one, 0.0), one);
        assert_eq!(rotate(&one, 180.0).into_raw(), [13, 12, 11, 3, 2, 1]);
        let turned = rotate(&one, 90.0);
        assert_eq!((turned.dimensions(), turned.into_raw()), ((2, 3), vec![11, 1, 12, 2, 13, 3]));
    }

    #[test]
    fn a_question_that_makes_no_sense_has_no_answer() {
        assert_eq!(parse("size=512&angle=20"), Some((512, 20.0)));
        for wrong in ["", "size=512", "size=0&angle=1", "size=99999&angle=1", "size=9&angle=nan"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
