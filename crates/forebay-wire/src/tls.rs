//! Reads, checks and reloads the certificates that decide who belongs to the cluster.
//!
//! A cluster has a certificate authority of its own (`forebay init` makes it), and belonging to the
//! cluster means to have a certificate signed by it. Both sides of a connection show theirs. The
//! name by which a node was reached is not compared with the certificate, since addresses move and
//! any member is as good as another at that point; instead, the name of the node *in* the
//! certificate is handed up, so that nobody joins under another's.
//!
//! TLS 1.3 alone, one provider of ciphers (`ring`), no session tickets: connections live for hours,
//! and each of them is judged afresh. Renewed files are used without a restart ([`Reloaded`]).

use crate::reloaded::Reloaded;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use webpki::{EndEntityCert, KeyUsage};

/// The cluster's CA: one certificate, or more while it is replaced.
pub const CA_FILE: &str = "ca.pem";
/// This node's certificate, and those between it and the CA if there are any.
pub const CERTIFICATE_FILE: &str = "node.pem";
/// The key of this node's certificate.
pub const KEY_FILE: &str = "node.key";

const FILES: [&str; 3] = [CA_FILE, CERTIFICATE_FILE, KEY_FILE];

/// What a node proves itself with, and judges others by.
#[derive(Debug)]
pub struct Identity(Reloaded<Material>);

/// One reading of the files.
pub(crate) struct Material {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    facts: Facts,
}

/// The facts of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The node it names.
    pub node: String,
    /// When it ends. The CA's own dates do not count: what is trusted has no date, only what it
    /// vouches for.
    pub expires: SystemTime,
}

impl Identity {
    /// Reads and checks the files of `directory`.
    ///
    /// # Errors
    /// Names the file, what is wrong with it and what to do.
    pub fn load(directory: &Path) -> io::Result<Self> {
        Reloaded::new(directory, &FILES, Material::load).map(Identity).map_err(|e| match e.kind() {
            ErrorKind::NotFound => io::Error::new(e.kind(), format!("{e}; `forebay init` makes it")),
            _ => e,
        })
    }

    /// What the certificate in use says.
    pub fn facts(&self) -> Facts {
        self.material().facts.clone()
    }

    pub(crate) fn material(&self) -> Arc<Material> {
        self.0.get()
    }
}

fn cannot_read(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display()))
}

fn wrong(path: &Path, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{}: {what}", path.display()))
}

impl Material {
    fn load(directory: &Path) -> io::Result<Self> {
        let (ca_path, path) = (directory.join(CA_FILE), directory.join(CERTIFICATE_FILE));
        let ca = read_certificates(&ca_path)?;
        let chain = read_certificates(&path)?;
        let key_path = directory.join(KEY_FILE);
        let key = read_key(&key_path)?;
        let mut roots = RootCertStore::empty();
        for certificate in &ca {
            roots
                .add(certificate.clone())
                .map_err(|e| wrong(&ca_path, &format!("not a CA's certificate: {e}")))?;
        }
        let facts = judge(&roots, &chain).map_err(|what| wrong(&path, &what))?;
        let (client, server) = configure(Arc::new(roots), chain, key).map_err(|e| match e {
            rustls::Error::InconsistentKeys(_) => wrong(&key_path, "is not the key of node.pem beside it"),
            e => wrong(&key_path, &format!("cannot be used: {e}")),
        })?;
        Ok(Material { client: Arc::new(client), server: Arc::new(server), facts })
    }
}

/// Reads the certificates of a PEM file, at least one.
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn read_certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read(path).map_err(|e| cannot_read(path, &e))?;
    let certificates: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(wrong(path, "contains no certificate (-----BEGIN CERTIFICATE-----)")),
        Err(e) => Err(wrong(path, &format!("not a PEM file: {e}"))),
    }
}

/// Reads a private key by [`read_secret`].
///
/// # Errors
/// Names the file and what is wrong with it.
pub fn read_key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    let text = read_secret(path)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|e| wrong(path, &format!("contains no private key: {e}")))
}

/// Reads a file with a private key. One that others can read proves nothing, so it is not used: as
/// ssh does.
///
/// # Errors
/// Names the file: it cannot be read, others can read it, or it is somebody else's.
pub fn read_secret(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path).map_err(|e| cannot_read(path, &e))?;
    let metadata = file.metadata()?;
    let (own, owner, mode) = (rustix::process::geteuid().as_raw(), metadata.uid(), metadata.mode() & 0o777);
    if mode & 0o077 != 0 {
        let what = format!(
            "others may read this key (mode {mode:04o}); chmod 600 it, or create a new one if they have"
        );
        return Err(wrong(path, &what));
    }
    if owner != own && owner != 0 {
        return Err(wrong(path, &format!("this key is user {owner}'s; chown it to user {own} or root")));
    }
    let mut text = Vec::new();
    file.read_to_end(&mut text).map_err(|e| cannot_read(path, &e))?;
    Ok(text)
}

/// What a certificate says, if the CA vouches for it now and in both directions.
fn judge(roots: &RootCertStore, chain: &[CertificateDer<'_>]) -> Result<Facts, String> {
    let (first, between) = chain.split_first().ok_or("there is no certificate in it")?;
    let certificate = EndEntityCert::try_from(first).map_err(|e| in_plain_words(&e))?;
    let algorithms = provider().signature_verification_algorithms.all;
    let check = |time: UnixTime, usage: KeyUsage| {
        let anchors = &roots.roots;
        certificate.verify_for_usage(algorithms, anchors, between, time, usage, None, None).map(|_| ())
    };
    for usage in [KeyUsage::server_auth(), KeyUsage::client_auth()] {
        check(UnixTime::now(), usage).map_err(|e| in_plain_words(&e))?;
    }
    let expires = last_valid(|time| check(time, KeyUsage::server_auth()));
    Ok(Facts { node: node_name(chain).map_err(|e| e.to_string())?, expires })
}

/// The last moment at which `check` is content: asked about a later one, it says when the
/// certificate ended. There is no other way to learn it short of another parser of certificates.
fn last_valid(check: impl Fn(UnixTime) -> Result<(), webpki::Error>) -> SystemTime {
    // More than one step if a certificate between this one and the CA ends before it.
    let mut moment = UnixTime::since_unix_epoch(Duration::from_secs(253_402_300_799)); // the year 9999
    while let Err(webpki::Error::CertExpired { time, not_after }) = check(moment) {
        if not_after.as_secs() >= time.as_secs() {
            break;
        }
        moment = not_after;
    }
    UNIX_EPOCH + Duration::from_secs(moment.as_secs())
}

fn in_plain_words(e: &webpki::Error) -> String {
    match e {
        webpki::Error::CertExpired { not_after, .. } => {
            let days = UnixTime::now().as_secs().saturating_sub(not_after.as_secs()) / 86_400;
            format!("this certificate expired {days} days ago; create a new one with `forebay init`")
        }
        webpki::Error::CertNotValidYet { .. } => {
            "this certificate is not valid yet; is this node's clock right?".into()
        }
        webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
            "this certificate was not signed by the CA of ca.pem beside it".into()
        }
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => {
            "this certificate is not valid for both ends of a connection (it needs serverAuth and clientAuth)"
                .into()
        }
        webpki::Error::CaUsedAsEndEntity => "this is a CA's certificate, not a node's".into(),
        e => format!("this certificate cannot be used: {e}"),
    }
}

/// The node that a certificate names.
pub(crate) fn node_name(chain: &[CertificateDer<'_>]) -> io::Result<String> {
    let first = chain.first().and_then(|first| EndEntityCert::try_from(first).ok());
    let name = first.and_then(|certificate| certificate.valid_dns_names().next().map(str::to_owned));
    name.ok_or_else(|| {
        io::Error::new(
            ErrorKind::PermissionDenied,
            "the certificate names no node (a DNS name as subjectAltName)",
        )
    })
}

/// AES-128 first: as good for this purpose as the longer key, and a third faster.
fn provider() -> CryptoProvider {
    use ring::cipher_suite::*;
    let suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    CryptoProvider { cipher_suites: suites, ..ring::default_provider() }
}

fn configure(
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(ClientConfig, ServerConfig), rustls::Error> {
    let provider = Arc::new(provider());
    let versions = &[&rustls::version::TLS13];
    let members = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|e| rustls::Error::General(e.to_string()))?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(members)
        .with_single_cert(chain.clone(), key.clone_key())?;
    server.send_tls13_tickets = 0;
    let judge = Arc::new(AnyMember { roots, algorithms: provider.signature_verification_algorithms });
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(judge)
        .with_client_auth_cert(chain, key)?;
    client.resumption = Resumption::disabled();
    client.enable_sni = false;
    Ok((client, server))
}

/// A certificate that is shown to browsers and to whatever collects metrics, which show none.
#[derive(Debug)]
pub struct PublicIdentity(Reloaded<ServerConfig>);

impl PublicIdentity {
    /// Reads [`CERTIFICATE_FILE`] and [`KEY_FILE`] of `directory`.
    ///
    /// # Errors
    /// Names the file, what is wrong with it and what to do.
    pub fn load(directory: &Path) -> io::Result<Self> {
        Reloaded::new(directory, &[CERTIFICATE_FILE, KEY_FILE], public_config).map(PublicIdentity)
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.0.get()
    }
}

fn public_config(directory: &Path) -> io::Result<ServerConfig> {
    let key_path = directory.join(KEY_FILE);
    let chain = read_certificates(&directory.join(CERTIFICATE_FILE))?;
    let key = read_key(&key_path)?;
    let config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = config.map_err(|e| wrong(&key_path, &format!("cannot be used with node.pem: {e}")))?;
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Believes any peer for which the cluster's CA vouches, whatever the name under which it was
/// reached.
#[derive(Debug)]
struct AnyMember {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyMember {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let all = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What went wrong between two ends, for people.
pub(crate) fn in_words(e: &rustls::Error) -> io::Error {
    use rustls::Error as E;
    let refused = |text: &str| io::Error::new(ErrorKind::PermissionDenied, text);
    match e {
        E::InvalidCertificate(what) => refused(&format!("the other end's certificate {}", complaint(what))),
        E::NoCertificatesPresented => refused("the other end shows no certificate"),
        E::AlertReceived(alert) => {
            refused(&format!("the other end refuses this node: {}", objection(*alert)))
        }
        E::InvalidMessage(_) => io::Error::new(
            ErrorKind::InvalidData,
            "the other end does not speak TLS; if it is of this cluster, set cluster.tls there",
        ),
        E::PeerIncompatible(_) => {
            io::Error::new(ErrorKind::InvalidData, format!("the other end is not of this cluster: {e}"))
        }
        e => io::Error::new(ErrorKind::InvalidData, format!("TLS failed: {e}")),
    }
}

fn complaint(what: &CertificateError) -> String {
    use CertificateError as C;
    match what {
        C::Expired | C::ExpiredContext { .. } => "has expired (or a clock is wrong)".into(),
        C::NotValidYet | C::NotValidYetContext { .. } => "is not valid yet (or a clock is wrong)".into(),
        C::UnknownIssuer | C::BadSignature => "was not signed by this cluster's CA".into(),
        C::InvalidPurpose | C::InvalidPurposeContext { .. } => {
            "is not valid for this end of a connection".into()
        }
        other => format!("cannot be trusted: {other}"),
    }
}

fn objection(alert: AlertDescription) -> String {
    use AlertDescription as A;
    match alert {
        A::UnknownCA | A::DecryptError => "it says that its CA did not sign this node's certificate".into(),
        A::CertificateExpired => {
            "it says that this node's certificate has expired (or a clock is wrong)".into()
        }
        A::UnsupportedCertificate => {
            "it says that this node's certificate is not valid for this purpose".into()
        }
        A::CertificateRequired => "it requires a certificate".into(),
        other => format!("it says {other:?}"),
    }
}
