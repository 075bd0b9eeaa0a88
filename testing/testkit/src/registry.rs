//! A registry of one's own, Debian's `docker-registry`, and images of noise to put into it.

use std::{
    fs::{self, File},
    io::Read,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use crate::{
    Netns, Unavailable,
    command::{CommandError, await_ready, find, output, require_root},
};

/// The user of a registry that is not public, and the password.
pub const LOGIN: (&str, &str) = ("bot", "secret");
/// The same as `htpasswd -B` writes it.
const HTPASSWD: &str = "bot:$2y$05$sBQh9RWAbp.0x1admHT8K.OkTeu6wfw2xDkV5eWekwVVRjNJjupEO\n";

/// A `docker-registry` in a network namespace, without TLS; its images go with it.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    is_public: bool,
    child: Child,
    netns: PathBuf,
    dir: TempDir,
}

impl Registry {
    /// Starts one, and waits until it answers. One that is not public wants [`LOGIN`].
    ///
    /// * `address`: one of the namespace's own.
    ///
    /// # Errors
    /// [`Unavailable`] says what is missing.
    pub fn start(netns: &Netns, address: SocketAddr, is_public: bool) -> Result<Registry, Unavailable> {
        require_root()?;
        let (nsenter, program) =
            (find("nsenter", "util-linux")?, find("docker-registry", "docker-registry")?);
        find("skopeo", "skopeo")?;
        let io = |source| Unavailable::Io { what: "set up docker-registry".to_owned(), source };
        let dir = tempfile::Builder::new().prefix("weir-registry-").tempdir().map_err(io)?;
        let at = |name: &str| dir.path().join(name);
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\nhttp: {{addr: \"{address}\"}}\n\
             storage: {{filesystem: {{rootdirectory: {}}}}}\n",
            at("data").display()
        );
        if !is_public {
            let htpasswd = at("htpasswd");
            fs::write(&htpasswd, HTPASSWD).map_err(io)?;
            config += &format!("auth: {{htpasswd: {{realm: weir, path: {}}}}}\n", htpasswd.display());
        }
        fs::write(at("config.yml"), config).map_err(io)?;
        let log = File::create(at("log")).map_err(io)?;
        let mut command = Command::new(nsenter);
        command.arg(format!("--net={}", netns.path().display())).arg("--").arg(program);
        command.arg("serve").arg(at("config.yml")).stdin(Stdio::null());
        let child = command.stdout(log.try_clone().map_err(io)?).stderr(log).spawn().map_err(io)?;
        // From here on drop ends it.
        let mut registry = Registry { address, is_public, child, netns: netns.path(), dir };
        let answers =
            || netns.run_in(|| std::net::TcpStream::connect(address).is_ok()).is_ok_and(|answers| answers);
        await_ready("docker-registry", &mut registry.child, &registry.dir.path().join("log"), answers)?;
        Ok(registry)
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts an image into it under a name: `push("oci:/tmp/made:1", "acme/app:1")`.
    ///
    /// * `from`: as skopeo names it, such as an [`image_of_noise`].
    ///
    /// # Errors
    /// [`CommandError`] with what skopeo said.
    pub fn push(&self, from: &str, name: &str) -> Result<(), CommandError> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.netns.display()));
        command.args([
            "--",
            "skopeo",
            "--insecure-policy",
            "copy",
            "--preserve-digests",
            "--dest-tls-verify=false",
        ]);
        if !self.is_public {
            command.arg(format!("--dest-creds={}:{}", LOGIN.0, LOGIN.1));
        }
        command.arg(from).arg(format!("docker://{}/{name}", self.address)).stdin(Stdio::null());
        output(&mut command).map(|_| ())
    }

    /// The GETs that it has answered with content, of paths with `part` in them.
    ///
    /// # Panics
    /// If its log cannot be read.
    #[must_use]
    pub fn gets(&self, part: &str) -> Vec<String> {
        let mut log = String::new();
        let file = File::open(self.dir.path().join("log"));
        file.and_then(|mut file| file.read_to_string(&mut log)).expect("the registry's log is there");
        // 10.9.0.1 - - [date] "GET /v2/... HTTP/1.1" 200 ...
        let answered = log.lines().filter_map(|line| {
            let (path, rest) = line.split_once("\"GET ")?.1.split_once(" HTTP/1.1\" ")?;
            (rest.starts_with("20") && path.contains(part)).then(|| path.to_owned())
        });
        answered.collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes an image with one layer for each size, files of noise, as an OCI layout in a directory
/// that does not exist yet; answers what skopeo calls it.
///
/// * `layers`: bytes each.
///
/// # Errors
/// [`Unavailable`] if a program or a file refuses.
pub fn image_of_noise(dir: &Path, layers: &[u64]) -> Result<String, Unavailable> {
    make_image(dir, layers, None)
}

/// The same that can be started: this machine's busybox is below the noise, which is the seed's, and
/// what it runs ends at once.
///
/// # Errors
/// As [`image_of_noise`].
pub fn runnable_image(dir: &Path, layers: &[u64], seed: u64) -> Result<String, Unavailable> {
    make_image(dir, layers, Some((find("busybox", "busybox-static")?, seed)))
}

/// Bytes that do not compress, the same for the same seed (SplitMix64).
struct Noise(u64);

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        for bytes in buffer.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bytes.copy_from_slice(&(z ^ (z >> 31)).to_le_bytes()[..bytes.len()]);
        }
        Ok(buffer.len())
    }
}

fn make_image(dir: &Path, layers: &[u64], program: Option<(PathBuf, u64)>) -> Result<String, Unavailable> {
    let io = |source| Unavailable::Io { what: format!("make an image in {}", dir.display()), source };
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(io)?;
    // Into the layout, under its digest; as a descriptor.
    let add = |from: &Path, kind: &str| {
        let sum = output(Command::new("sha256sum").arg(from))?;
        let hex = sum.split(' ').next().unwrap_or_default();
        let size = fs::metadata(from).map_err(io)?.len();
        fs::rename(from, blobs.join(hex)).map_err(io)?;
        let descriptor = format!(
            "{{\"mediaType\":\"application/vnd.oci.image.{kind}\",\"digest\":\"sha256:{hex}\",\"size\":{size}}}"
        );
        Ok::<_, Unavailable>((format!("\"sha256:{hex}\""), descriptor))
    };
    let (mut ids, mut descriptors) = (Vec::new(), Vec::new());
    if let Some((busybox, _)) = &program {
        fs::create_dir_all(dir.join("bin")).map_err(io)?;
        fs::copy(busybox, dir.join("bin/busybox")).map_err(io)?;
        output(Command::new("tar").arg("-cf").arg(dir.join("layer")).arg("-C").arg(dir).arg("bin"))?;
        fs::remove_dir_all(dir.join("bin")).map_err(io)?;
        let (id, descriptor) = add(&dir.join("layer"), "layer.v1.tar")?;
        ids.push(id);
        descriptors.push(descriptor);
    }
    for (n, size) in layers.iter().enumerate() {
        let (noise, tar) = (dir.join(format!("noise-{n}")), dir.join("layer"));
        let random: Box<dyn Read> = match &program {
            Some((_, seed)) => {
                Box::new(Noise(seed.wrapping_add(n as u64).wrapping_mul(0x1234_5678_9abc_def1)))
            }
            None => Box::new(File::open("/dev/urandom").map_err(io)?),
        };
        std::io::copy(&mut random.take(*size), &mut File::create(&noise).map_err(io)?).map_err(io)?;
        output(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(dir).arg(format!("noise-{n}")))?;
        fs::remove_file(noise).map_err(io)?;
        let (id, descriptor) = add(&tar, "layer.v1.tar")?;
        ids.push(id);
        descriptors.push(descriptor);
    }
    let text = dir.join("text");
    let run = if program.is_some() { "\"Cmd\":[\"/bin/busybox\",\"true\"]" } else { "" };
    let config = format!(
        "{{\"architecture\":\"amd64\",\"os\":\"linux\",\"config\":{{{run}}},\
         \"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[{}]}}}}",
        ids.join(",")
    );
    fs::write(&text, config).map_err(io)?;
    let (_, config) = add(&text, "config.v1+json")?;
    let manifest = format!(
        "{{\"schemaVersion\":2,\"mediaType\":\"application/vnd.oci.image.manifest.v1+json\",\
         \"config\":{config},\"layers\":[{}]}}",
        descriptors.join(",")
    );
    fs::write(&text, manifest).map_err(io)?;
    let (_, manifest) = add(&text, "manifest.v1+json")?;
    let named = manifest.replacen('{', "{\"annotations\":{\"org.opencontainers.image.ref.name\":\"1\"},", 1);
    fs::write(dir.join("index.json"), format!("{{\"schemaVersion\":2,\"manifests\":[{named}]}}"))
        .map_err(io)?;
    fs::write(dir.join("oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").map_err(io)?;
    Ok(format!("oci:{}:1", dir.display()))
}
