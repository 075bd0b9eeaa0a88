//! A Redis of a test's own, which it can stop, freeze and start again.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use futures_util::future::BoxFuture;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use weir_image::{Utc, coordination::Redis, now_utc};

use super::conformance::Clock;

pub(crate) struct RedisServer {
    dir: tempfile::TempDir,
    child: Mutex<Option<Child>>,
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl RedisServer {
    /// One that listens on a socket in a directory of its own, and keeps nothing on the disk.
    pub(crate) async fn start() -> RedisServer {
        let server = RedisServer { dir: tempfile::tempdir().unwrap(), child: Mutex::default() };
        server.begin().await;
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Begins it (again), with nothing in it.
    pub(crate) async fn begin(&self) {
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(self.socket())
            .current_dir(self.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed here: scripts/install-deps.sh test");
        *self.child.lock().unwrap() = Some(child);
        let mut tries = 0;
        while self.count_keys().await.is_err() {
            tries += 1;
            assert!(tries < 600, "redis-server does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.lock().unwrap().as_ref().expect("it runs").id();
        kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    }

    /// It accepts connections, and says nothing.
    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The view of a node.
    pub(crate) fn node(&self, address: &str) -> Redis {
        Redis::new(&self.url(), None, "test", address).unwrap()
    }

    async fn run<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> redis::RedisResult<T> {
        let client = redis::Client::open(self.url())?;
        command.query_async(&mut client.get_multiplexed_async_connection().await?).await
    }

    pub(crate) async fn count_keys(&self) -> redis::RedisResult<i64> {
        self.run(&redis::cmd("DBSIZE")).await
    }
}

impl Clock for RedisServer {
    fn now(&self) -> Utc {
        now_utc()
    }

    /// All keys with an end of life end this much earlier.
    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        let sooner = "
            for _, key in ipairs(redis.call('KEYS', '*')) do
                local left = redis.call('PTTL', key)
                if left >= 0 then
                    left = left - ARGV[1]
                    if left > 0 then redis.call('PEXPIRE', key, left) else redis.call('DEL', key) end
                end
            end";
        let mut command = redis::cmd("EVAL");
        command.arg(sooner).arg(0).arg(u64::try_from(time.as_millis()).unwrap());
        Box::pin(async move { self.run(&command).await.unwrap() })
    }
}
