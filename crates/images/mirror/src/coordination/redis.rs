//! The nodes of a site on one Redis: every change a script, so that it is one step.

use std::{
    collections::HashSet,
    fmt,
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, IntoConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisError, Value, aio::MultiplexedConnection,
};
use tokio::sync::{Mutex, broadcast};

use super::{
    AcquireResult, Answer, Coordination, EVENTS_CAPACITY, LEASE, Lease, Nodes, REGISTERED, SiteEvent,
    Unreachable,
};
use weir_units::{chain, without_user};

use crate::{Digest, Utc, settings::PopSettings};

/// A connection, or an answer, has so long; callers go on without it then.
const REDIS_TIMEOUT: Duration = Duration::from_millis(500);
/// After a failure it is not asked for so long.
const PAUSE: Duration = Duration::from_secs(1);

/// KEYS: lease, fence. ARGV: address, milliseconds. `{fence, ''}`, or `{0, who has it}`.
const ACQUIRE: &str = "
    local held = redis.call('GET', KEYS[1])
    if held then return {0, string.match(held, ' (.*)')} end
    local time = redis.call('TIME')
    local fence = math.max((tonumber(redis.call('GET', KEYS[2])) or 0) + 1,
                           time[1] * 1000 + math.floor(time[2] / 1000))
    redis.call('SET', KEYS[2], string.format('%.0f', fence))
    redis.call('SET', KEYS[1], string.format('%.0f ', fence) .. ARGV[1], 'PX', ARGV[2])
    return {fence, ''}";
/// KEYS: lease. ARGV: what it is, milliseconds.
const RENEW: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
/// KEYS: lease. ARGV: what it is.
const RELEASE: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('DEL', KEYS[1])";
/// KEYS: nodes, what this one uses. ARGV: address, milliseconds, digests.
const REGISTER: &str = "
    redis.call('SADD', KEYS[1], ARGV[1])
    redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[2])";
/// KEYS: nodes. ARGV: the key of what a node uses, without its address.
const NODES: &str = "
    local found = {}
    for _, node in ipairs(redis.call('SMEMBERS', KEYS[1])) do
        local uses = #found < tonumber(ARGV[2]) and redis.call('GETRANGE', ARGV[1] .. node, 0, ARGV[3] - 1)
        if redis.call('EXISTS', ARGV[1] .. node) == 1 then
            if uses then found[#found + 1] = {node, uses} end
        else redis.call('SREM', KEYS[1], node) end
    end
    return found";

/// The most nodes of a site that are read,
const MAX_NODES: usize = 256;
/// and the most bytes of what one of them uses: about 4,000 digests.
const MAX_USES: usize = 300_000;

/// A site's Redis, as one node sees it.
///
/// | key | value |
/// |---|---|
/// | `weir:SITE:lease:DIGEST` | fence and address of who downloads it; ends by itself |
/// | `weir:SITE:fence` | the last fence |
/// | `weir:SITE:nodes` | addresses of nodes, a set |
/// | `weir:SITE:use:ADDRESS` | digests that it uses, parted by spaces; ends by itself |
/// | `weir:SITE:news` | a channel of [`SiteEvent`] |
pub struct Redis {
    client: Client,
    config: AsyncConnectionConfig,
    site: String,
    address: String,
    link: Mutex<Link>,
    events: broadcast::Sender<SiteEvent>,
}

enum Link {
    Up(MultiplexedConnection),
    /// Not to be asked before this, for this.
    Down(Instant, String),
    Never,
}

/// The URL does not name a Redis that weir can ask.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use `{url}` as the redis of [images.pop]: write it as redis://10.0.0.5:6379 or unix:///run/redis.sock"
)]
pub struct BadRedis {
    url: String,
    #[source]
    source: RedisError,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("site", &self.site)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Redis {
    /// The Redis that keeps the leases of the site.
    ///
    /// # Errors
    /// The URL is wrong, or the password cannot be read.
    pub fn of(pop: &PopSettings) -> Result<Redis, String> {
        let password = match &pop.redis_password_file {
            None => None,
            Some(file) => Some(
                std::fs::read_to_string(file)
                    .map_err(|e| format!("cannot read redis_password_file {}: {e}", file.display()))?,
            ),
        };
        Redis::new(&pop.redis, password.as_deref().map(str::trim_end), &pop.name, &pop.address()?)
            .map_err(|e| chain(&e))
    }

    /// A site's Redis; it is connected to when it is needed.
    ///
    /// * `url`: `redis://10.0.0.5:6379`, or `unix:///run/redis.sock`.
    /// * `site`: sites that share a Redis are told apart by it.
    /// * `address`: where peers ask this node.
    ///
    /// # Errors
    /// [`BadRedis`].
    pub fn new(url: &str, password: Option<&str>, site: &str, address: &str) -> Result<Redis, BadRedis> {
        let bad = |source| BadRedis { url: without_user(url, "(hidden)"), source };
        let info = url.into_connection_info().map_err(bad)?;
        // News come in by the same connection.
        let mut settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let info = info.set_redis_settings(settings);
        let client = Client::open(info).map_err(bad)?;
        let events = broadcast::Sender::new(EVENTS_CAPACITY);
        let heard = events.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REDIS_TIMEOUT))
            .set_response_timeout(Some(REDIS_TIMEOUT))
            .set_push_sender(move |push| {
                hear(&push, &heard);
                Ok::<(), redis::aio::SendError>(())
            });
        let (site, address) = (format!("weir:{site}"), address.to_owned());
        Ok(Redis { client, config, site, address, link: Mutex::new(Link::Never), events })
    }

    fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.site)
    }

    fn lease_key(&self, digest: &Digest) -> String {
        self.key(&format!("lease:{digest}"))
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Unreachable> {
        let mut link = self.link.lock().await;
        match &*link {
            Link::Up(connection) => return Ok(connection.clone()),
            Link::Down(until, why) if Instant::now() < *until => return Err(Unreachable(why.clone())),
            Link::Down(..) | Link::Never => {}
        }
        let connecting = async {
            let mut connection =
                self.client.get_multiplexed_async_connection_with_config(&self.config).await?;
            connection.subscribe(self.key("news")).await?;
            Ok::<_, RedisError>(connection)
        };
        match connecting.await {
            Ok(connection) => {
                if matches!(*link, Link::Down(..)) {
                    tracing::info!("the redis of the site is there again");
                }
                *link = Link::Up(connection.clone());
                Ok(connection)
            }
            Err(e) => Err(self.lost(&mut link, &e)),
        }
    }

    fn lost(&self, link: &mut Link, error: &RedisError) -> Unreachable {
        let why = chain(error);
        if !matches!(link, Link::Down(..)) {
            tracing::warn!("the redis of the site cannot be asked, this node goes on by itself: {why}");
        }
        *link = Link::Down(Instant::now() + PAUSE, why.clone());
        Unreachable(why)
    }

    async fn ask<T: FromRedisValue>(&self, command: Cmd) -> Result<T, Unreachable> {
        let mut connection = self.connection().await?;
        match command.query_async(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(e) => Err(self.lost(&mut *self.link.lock().await, &e)),
        }
    }
}

/// A message of the channel; others are not for us.
fn hear(push: &PushInfo, to: &broadcast::Sender<SiteEvent>) {
    let (PushKind::Message, Some(Value::BulkString(bytes))) = (&push.kind, push.data.get(1)) else { return };
    if let Some(event) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()) {
        // An error means that no receiver listens.
        let _ = to.send(event);
    }
}

fn script(text: &str, keys: &[String]) -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg(text).arg(keys.len()).arg(keys);
    command
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Coordination for Redis {
    fn acquire<'a>(&'a self, digest: &'a Digest, _now: Utc) -> Answer<'a, AcquireResult> {
        Box::pin(async move {
            let mut command = script(ACQUIRE, &[self.lease_key(digest), self.key("fence")]);
            command.arg(&self.address).arg(millis(LEASE));
            let (fence, by): (u64, String) = self.ask(command).await?;
            Ok(match fence {
                0 => AcquireResult::Held { by },
                fence => AcquireResult::Granted(Lease { digest: digest.clone(), fence }),
            })
        })
    }

    fn renew<'a>(&'a self, lease: &'a Lease, _now: Utc) -> Answer<'a, bool> {
        Box::pin(async move {
            let mut command = script(RENEW, &[self.lease_key(&lease.digest)]);
            command.arg(format!("{} {}", lease.fence, self.address)).arg(millis(LEASE));
            self.ask(command).await
        })
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut command = script(RELEASE, &[self.lease_key(&lease.digest)]);
            command.arg(format!("{} {}", lease.fence, self.address));
            self.ask::<i64>(command).await.map(drop)
        })
    }

    fn register<'a>(&'a self, in_use: &'a HashSet<Digest>, _now: Utc) -> Answer<'a, ()> {
        Box::pin(async move {
            let uses = self.key(&format!("use:{}", self.address));
            let mut command = script(REGISTER, &[self.key("nodes"), uses]);
            let digests: Vec<String> = in_use.iter().map(ToString::to_string).collect();
            command.arg(&self.address).arg(millis(REGISTERED)).arg(digests.join(" "));
            self.ask(command).await
        })
    }

    fn nodes<'a>(&'a self, _now: Utc) -> Answer<'a, Nodes> {
        Box::pin(async move {
            let mut command = script(NODES, &[self.key("nodes")]);
            command.arg(self.key("use:")).arg(MAX_NODES).arg(MAX_USES);
            let found: Vec<(String, String)> = self.ask(command).await?;
            let in_use = found.iter().flat_map(|(_, uses)| uses.split(' '));
            let in_use = in_use.filter_map(|digest| digest.parse().ok()).collect();
            let mut addresses: Vec<String> = found.into_iter().map(|(node, _)| node).collect();
            addresses.sort();
            Ok(Nodes { addresses, in_use })
        })
    }

    fn publish_event<'a>(&'a self, event: &'a SiteEvent) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("PUBLISH");
            command.arg(self.key("news")).arg(event.to_string());
            self.ask::<i64>(command).await.map(drop)
        })
    }

    fn events(&self) -> broadcast::Receiver<SiteEvent> {
        self.events.subscribe()
    }
}
