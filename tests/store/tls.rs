//! TLS by a real server with a certificate made here.

use anyhow::Result;
use e2e::Redis;
use e2e::scratch::Scratch;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use state_service::store::{Standing, Store, StoreConfig, StoreError};

use crate::support::{PREFIX, bound, patient};

/// A server that also listens with TLS; the port and the authority that signed it.
struct Tls {
    _redis: Redis,
    port: u16,
    ca: String,
    _files: Scratch,
}

async fn start() -> Result<Tls> {
    let files = Scratch::new()?;
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    let ca = authority.pem();
    for (name, text) in [("ca.pem", &ca), ("cert.pem", &certificate.pem()), ("key.pem", &key.serialize_pem())]
    {
        std::fs::write(files.join(name), text)?;
    }
    let (cert, key, trust) = (files.join("cert.pem"), files.join("key.pem"), files.join("ca.pem"));
    let [cert, key, trust] = [cert, key, trust].map(|path| path.display().to_string());
    let spare = Redis::start().await?.address().port();
    let port = spare.to_string();
    let args = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &trust,
        "--tls-auth-clients",
        "no",
    ];
    Ok(Tls { _redis: Redis::start_with(&args).await?, port: spare, ca, _files: files })
}

impl Tls {
    async fn open(&self, host: &str, ca: Option<&str>) -> Result<Store> {
        let mut config = patient(&format!("rediss://{host}:{}", self.port))?;
        config.ca = ca.map(|pem| pem.as_bytes().to_vec());
        Ok(Store::open(&config).await?)
    }
}

#[tokio::test]
async fn a_certificate_of_the_given_authority_is_trusted_and_no_other() -> Result<()> {
    let tls = start().await?;
    let store = tls.open("127.0.0.1", Some(&tls.ca)).await?;
    assert_eq!(store.status().standing, Standing::Up);
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    assert_eq!(store.follow(Default::default(), routing::time::Millis(10)).await?.entries.len(), 1);

    let mut other = CertificateParams::default();
    other.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let other = CertifiedIssuer::self_signed(other, KeyPair::generate()?)?.pem();
    let Standing::Away { reason } = tls.open("127.0.0.1", Some(&other)).await?.status().standing else {
        panic!("trusted")
    };
    assert!(reason.contains("certificate"), "{reason}");
    Ok(())
}

#[tokio::test]
async fn an_authority_that_is_none_or_has_no_use_is_refused_at_opening() -> Result<()> {
    let mut config = StoreConfig::new("rediss://localhost:1", PREFIX, 1)?;
    config.ca = Some(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec());
    assert!(matches!(Store::open(&config).await.map(drop), Err(StoreError::Config(_))));
    let mut config = StoreConfig::new("redis://localhost:1", PREFIX, 1)?;
    config.ca = Some(Vec::new());
    assert!(matches!(Store::open(&config).await.map(drop), Err(StoreError::Config(_))));
    Ok(())
}
