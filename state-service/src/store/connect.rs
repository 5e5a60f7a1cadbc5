//! Making one connection: to a server, to a cluster, or to whom sentinels name. Knows TLS and timeouts of the client; not when to try.

use super::config::{Place, StoreConfig};
use super::error::StoreError;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr};
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, Pipeline, RedisFuture, RedisResult,
    TlsCertificates, TlsMode, Value,
};
use routing::time::Millis;
use std::time::Duration;

/// How often the client itself asks another node of a cluster: our own deadline ends it all.
const CLUSTER_RETRIES: u32 = 3;

/// A connection that many callers share.
#[derive(Clone)]
pub(super) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// Sends a command without a key to the node that has our keys.
    pub(super) async fn ask_node_of(&mut self, key: &str, command: Cmd) -> RedisResult<Value> {
        match self {
            Self::One(one) => one.send_packed_command(&command).await,
            Self::Cluster(cluster) => {
                let route = Route::with_key(key, SlotAddr::Master);
                let routing = RoutingInfo::SingleNode(SingleNodeRoutingInfo::SpecificNode(route));
                cluster.route_command(command, routing).await
            }
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(one) => one.req_packed_command(command),
            Self::Cluster(cluster) => cluster.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(one) => one.req_packed_commands(pipeline, offset, count),
            Self::Cluster(cluster) => cluster.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(one) => one.get_db(),
            Self::Cluster(cluster) => cluster.get_db(),
        }
    }
}

/// Checks what can be checked without a server, once: certificates, and that TLS has its cryptography.
pub(super) fn check(config: &StoreConfig) -> Result<(), StoreError> {
    // Another part of the process may have chosen already: theirs serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if config.ca.is_none() {
        return Ok(());
    }
    match &config.place {
        Place::One(info) => client(info, config).map(drop).map_err(|_| {
            StoreError::Config(
                "the store's authority is no PEM certificate, or its URL has no TLS".to_owned(),
            )
        }),
        Place::Cluster(_) | Place::Sentinels { .. } => Ok(()),
    }
}

/// Connects; no answer may take longer than `patience`.
pub(super) async fn connect(config: &StoreConfig, patience: Millis) -> RedisResult<Connection> {
    match &config.place {
        Place::One(info) => {
            let client = client(info, config)?;
            client.get_multiplexed_async_connection_with_config(&settings(config)).await.map(Connection::One)
        }
        Place::Cluster(nodes) => cluster(nodes, config, patience).await.map(Connection::Cluster),
        Place::Sentinels { sentinels, master, login } => {
            let mut client = sentinel(sentinels, master, login, config)?.build()?;
            client.get_async_connection_with_config(&settings(config)).await.map(Connection::One)
        }
    }
}

fn client(info: &ConnectionInfo, config: &StoreConfig) -> RedisResult<Client> {
    match certificates(config) {
        None => Client::open(info.clone()),
        Some(certificates) => Client::build_with_tls(info.clone(), certificates),
    }
}

/// Calls have deadlines of their own, which differ: the client adds none.
fn settings(config: &StoreConfig) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_millis(config.connect.0)))
        .set_response_timeout(None)
}

fn certificates(config: &StoreConfig) -> Option<TlsCertificates> {
    config.ca.clone().map(|ca| TlsCertificates { client_tls: None, root_cert: Some(ca) })
}

async fn cluster(
    nodes: &[ConnectionInfo],
    config: &StoreConfig,
    patience: Millis,
) -> RedisResult<ClusterConnection> {
    let mut builder = ClusterClientBuilder::new(nodes.to_vec())
        .retries(CLUSTER_RETRIES)
        .connection_timeout(Duration::from_millis(config.connect.0))
        .response_timeout(Duration::from_millis(patience.0));
    if let Some(certificates) = certificates(config) {
        builder = builder.certs(certificates);
    }
    builder.build()?.get_async_connection().await
}

fn sentinel(
    sentinels: &[ConnectionInfo],
    master: &str,
    login: &ConnectionInfo,
    config: &StoreConfig,
) -> RedisResult<SentinelClientBuilder> {
    let addresses = sentinels.iter().map(|info| info.addr().clone());
    let settings = login.redis_settings();
    let mut builder = SentinelClientBuilder::new(addresses, master, SentinelServerType::Master)?
        .set_client_to_redis_db(settings.db());
    if let Some(user) = settings.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = settings.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    if matches!(login.addr(), ConnectionAddr::TcpTls { .. }) {
        builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
    }
    if let Some(certificates) = certificates(config) {
        builder = builder
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_certificates(certificates);
    }
    Ok(builder)
}
