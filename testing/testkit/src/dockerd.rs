//! A containerd and a dockerd of one's own.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::unix::{fs::MetadataExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    CommandError, IMAGE, Unavailable,
    command::{await_ready, find, output, require_root},
    image, netns, remains,
};

/// A Docker daemon in a network namespace, with its own containerd, socket, data and cgroup,
/// and one image, [`IMAGE`].
///
/// It runs with `--live-restore`, so containers outlive [`Dockerd::kill_daemon`]; its
/// containerd does too, as on a node where that is a service of its own. Drop ends the
/// containers and removes all of it; what could not be removed is printed.
#[derive(Debug)]
pub struct Dockerd {
    dir: PathBuf,
    netns: String,
    programs: Programs,
    containerd: Option<Child>,
    dockerd: Option<Child>,
}

#[derive(Debug)]
struct Programs {
    nsenter: PathBuf,
    containerd: PathBuf,
    dockerd: PathBuf,
    docker: PathBuf,
    tar: PathBuf,
}

impl Dockerd {
    /// Starts one in the named network namespace (`ip netns add NAME`), and waits until it
    /// answers: about half a second.
    ///
    /// # Errors
    /// [`Unavailable`] says what is missing.
    pub fn start(netns: &str) -> Result<Dockerd, Unavailable> {
        require_root()?;
        let programs = Programs {
            nsenter: find("nsenter", "util-linux")?,
            containerd: find("containerd", "containerd")?,
            dockerd: find("dockerd", "docker.io")?,
            docker: find("docker", "docker.io")?,
            tar: find("tar", "tar")?,
        };
        find("runc", "runc")?;
        find("iptables", "iptables")?;
        refuse_host_netns(netns)?;
        if let Err(left) = remains::sweep() {
            eprintln!("cannot undo all that an earlier run left: {}", left.join("; "));
        }
        let dir = remains::new_dir()
            .map_err(|source| Unavailable::Io { what: "make a directory for dockerd".into(), source })?;
        let mut daemon = Dockerd { dir, netns: netns.to_owned(), programs, containerd: None, dockerd: None };
        daemon.start_containerd()?;
        daemon.start_dockerd()?;
        daemon.import_image()?;
        Ok(daemon)
    }

    /// The socket its API is served on.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// The socket of its containerd.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    /// The root of the file system for its configuration: `etc/docker/daemon.json` is below it. It
    /// goes with the daemon.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// Has the daemon read its configuration again, as `systemctl reload docker` does.
    ///
    /// # Errors
    /// [`Unavailable::Io`] if it does not run.
    pub fn reload(&self) -> Result<(), Unavailable> {
        let io = |source| Unavailable::Io { what: "reload dockerd".to_owned(), source };
        let child = self.dockerd.as_ref().ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
        let pid = i32::try_from(child.id()).map_err(|e| io(std::io::Error::other(e)))?;
        kill(Pid::from_raw(pid), Signal::SIGHUP).map_err(|errno| io(errno.into()))
    }

    /// The network namespace it is in.
    #[must_use]
    pub fn netns(&self) -> &str {
        &self.netns
    }

    /// Starts a container of [`IMAGE`] and leaves it running; returns its id.
    ///
    /// `options` are those of `docker run`, such as `["--network", "host"]`. Docker wants names
    /// of two characters or more.
    ///
    /// # Errors
    /// [`CommandError`] with what Docker said.
    pub fn run(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        options: &[&str],
        command: &[&str],
    ) -> Result<String, CommandError> {
        let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut line = vec!["run", "--detach", "--name", name];
        line.extend(labels.iter().flat_map(|label| ["--label", label.as_str()]));
        line.extend(options);
        line.push(IMAGE);
        line.extend(command);
        self.docker(&line)
    }

    /// Runs a command in a container to its end; returns what it wrote.
    ///
    /// # Errors
    /// [`CommandError`] if it fails.
    pub fn exec(&self, name: &str, command: &[&str]) -> Result<String, CommandError> {
        self.docker(&[&["exec", name], command].concat())
    }

    /// Kills a container and removes it.
    ///
    /// # Errors
    /// [`CommandError`] with what Docker said.
    pub fn rm(&self, name: &str) -> Result<(), CommandError> {
        self.docker(&["rm", "--force", "--volumes", name]).map(|_| ())
    }

    /// Stops a container without waiting for it to end by itself; it can be started again.
    ///
    /// # Errors
    /// [`CommandError`] with what Docker said.
    pub fn stop(&self, name: &str) -> Result<(), CommandError> {
        self.docker(&["stop", "--time", "0", name]).map(|_| ())
    }

    /// Sends a container SIGKILL.
    ///
    /// # Errors
    /// [`CommandError`] with what Docker said.
    pub fn kill(&self, name: &str) -> Result<(), CommandError> {
        self.docker(&["kill", name]).map(|_| ())
    }

    /// Any command of `docker` on this daemon: `docker(&["network", "create", "lan"])`.
    /// Returns its standard output.
    ///
    /// # Errors
    /// [`CommandError`] with what Docker said.
    pub fn docker(&self, args: &[&str]) -> Result<String, CommandError> {
        output(&mut self.client(args))
    }

    /// Kills the daemon, not its containers, with SIGKILL: a crash.
    pub fn kill_daemon(&mut self) {
        if let Some(mut child) = self.dockerd.take() {
            // It may have ended by itself, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the daemon again after [`Dockerd::kill_daemon`], on the same socket and data, and
    /// waits until it answers.
    ///
    /// # Errors
    /// [`Unavailable`] with its last words if it does not start.
    pub fn restart_daemon(&mut self) -> Result<(), Unavailable> {
        self.kill_daemon();
        // A daemon believes a file that names a process which is now another's.
        let _ = fs::remove_file(self.dir.join("docker.pid"));
        self.start_dockerd()
    }

    fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.docker);
        command.arg("--host").arg(format!("unix://{}", self.socket().display())).args(args);
        command.env("DOCKER_CONFIG", self.dir.join("client")).stdin(Stdio::null());
        for variable in ["DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION"] {
            command.env_remove(variable);
        }
        command
    }

    /// dockerd would start a containerd itself, or take the machine's: then a killed one's
    /// containers hang on a zombie, or get among those of others.
    fn start_containerd(&mut self) -> Result<(), Unavailable> {
        let config = self.dir.join("containerd.toml");
        write(&config, "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n")?;
        let socket = self.dir.join("containerd.sock");
        let args = [
            "--config".as_ref(),
            config.as_os_str(),
            "--root".as_ref(),
            self.dir.join("containerd").as_os_str(),
            "--state".as_ref(),
            self.dir.join("containerd-state").as_os_str(),
            "--address".as_ref(),
            socket.as_os_str(),
        ]
        .map(|arg| arg.to_owned());
        let mut command = self.in_netns(&self.programs.containerd);
        command.args(args);
        self.containerd = Some(self.spawn("containerd", command, || UnixStream::connect(&socket).is_ok())?);
        Ok(())
    }

    fn start_dockerd(&mut self) -> Result<(), Unavailable> {
        let version = output(Command::new(&self.programs.dockerd).arg("--version"))?;
        let config = self.root().join("etc/docker/daemon.json");
        if !config.exists() {
            let etc = self.root().join("etc/docker");
            let io = |source| Unavailable::Io { what: format!("make {}", etc.display()), source };
            fs::create_dir_all(&etc).map_err(io)?;
            write(&config, &daemon_json(&version, &self.dir))?;
        }
        let socket = self.socket();
        let mut command = self.in_netns(&self.programs.dockerd);
        for (option, file) in [
            ("--config-file", "root/etc/docker/daemon.json"),
            ("--data-root", "data"),
            ("--exec-root", "exec"),
            ("--pidfile", "docker.pid"),
            ("--containerd", "containerd.sock"),
        ] {
            command.arg(option).arg(self.dir.join(file));
        }
        command.arg("--host").arg(format!("unix://{}", socket.display()));
        command.arg("--cgroup-parent").arg(format!("/{}", remains::cgroup_of(&self.dir)));
        command.args(["--exec-opt", "native.cgroupdriver=cgroupfs", "--live-restore"]);
        self.dockerd = Some(self.spawn("dockerd", command, || answers_ping(&socket))?);
        Ok(())
    }

    fn in_netns(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.programs.nsenter);
        command.arg(format!("--net={}/{}", netns::DIR, self.netns)).arg("--").arg(program);
        command.stdin(Stdio::null());
        command
    }

    /// Starts a daemon and waits until it is ready.
    fn spawn(
        &self,
        program: &'static str,
        mut command: Command,
        ready: impl Fn() -> bool,
    ) -> Result<Child, Unavailable> {
        let log = self.dir.join(format!("{program}.log"));
        let io = |source| Unavailable::Io { what: format!("start {program}"), source };
        let file = File::create(&log).map_err(io)?;
        command.stdout(file.try_clone().map_err(io)?).stderr(file);
        let mut child = command.spawn().map_err(io)?;
        await_ready(program, &mut child, &log, ready)?;
        Ok(child)
    }

    fn import_image(&self) -> Result<(), Unavailable> {
        let root = self.dir.join("image");
        let archive = self.dir.join("image.tar");
        image::build(&root)?;
        output(Command::new(&self.programs.tar).arg("-cf").arg(&archive).arg("-C").arg(&root).arg("."))?;
        let path = archive.to_string_lossy();
        self.docker(&["import", "--change", "CMD [\"/bin/sh\"]", &path, IMAGE])?;
        for result in [fs::remove_dir_all(root), fs::remove_file(&archive)] {
            result.map_err(|source| Unavailable::Io { what: "remove the image's parts".into(), source })?;
        }
        Ok(())
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        // The two are children of this process, which must reap them.
        for mut child in [self.dockerd.take(), self.containerd.take()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(left) = remains::clear(&self.dir) {
            eprintln!("dockerd left behind: {}", left.join("; "));
        }
    }
}

/// dockerd 20.10 writes a key to /etc/docker unless told otherwise; later ones keep it in
/// the data directory and refuse the setting.
fn daemon_json(version: &str, dir: &Path) -> String {
    match version.strip_prefix("Docker version 20.") {
        Some(_) => format!("{{\"deprecated-key-path\": \"{}\"}}\n", dir.join("key.json").display()),
        None => "{}\n".to_owned(),
    }
}

/// Inside the machine's own namespace dockerd would cut off what others forward.
fn refuse_host_netns(name: &str) -> Result<(), Unavailable> {
    let path = Path::new(netns::DIR).join(name);
    let meta = fs::metadata(&path).map_err(|source| Unavailable::NoNetns { path, source })?;
    // The first may be hidden from us; then we are hardly elsewhere ourselves.
    let own = ["/proc/1/ns/net", "/proc/self/ns/net"].into_iter().flat_map(fs::metadata);
    if own.into_iter().any(|own| (own.dev(), own.ino()) == (meta.dev(), meta.ino())) {
        return Err(Unavailable::HostNetns { name: name.to_owned() });
    }
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<(), Unavailable> {
    fs::write(file, text)
        .map_err(|source| Unavailable::Io { what: format!("write {}", file.display()), source })
}

/// Whether an HTTP server on this socket says that it is well.
fn answers_ping(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    };
    ask().is_ok_and(|answer| answer.split(' ').nth(1) == Some("200"))
}
