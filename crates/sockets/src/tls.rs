//! TLS 1.3 by rustls: configurations, the identity of the peer, and messages for people when trust fails.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{ring, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, ServerConfig};
use thalweg_transport::{Address, Error, ErrorKind, Identity, Peer, Result, Tls};
use tokio_rustls::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Label of the exported secret that binds a proof to a link (RFC 5705).
pub const BINDING: &[u8] = b"EXPORTER-thalweg-session";
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

fn security(operation: &'static str, context: impl Into<String>, hint: &'static str) -> Error {
    Error::new(ErrorKind::Security, operation, context).hint(hint)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn unusable(operation: &'static str, error: &dyn std::fmt::Display) -> Error {
    security(operation, format!("tls cannot be set up: {error}"), "check the certificates and the key")
}

fn certificates(operation: &'static str, what: &str, pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let hint = "give certificates in PEM, as `thalweg pki` writes them";
    let found = found.map_err(|e| security(operation, format!("tls.{what} is not PEM: {e}"), hint))?;
    if found.is_empty() {
        return Err(security(operation, format!("tls.{what} holds no certificate"), hint));
    }
    Ok(found)
}

fn identity(
    operation: &'static str,
    identity: &Identity,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = certificates(operation, "identity.certificate", &identity.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
    let hint = "give the key in PEM, as `thalweg pki` writes it";
    let key = key.map_err(|e| security(operation, format!("tls.identity.key is no key: {e}"), hint))?;
    Ok((chain, key))
}

fn roots(operation: &'static str, authority: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(operation, "authority", authority)? {
        roots.add(certificate).map_err(|e| unusable(operation, &e))?;
    }
    Ok(roots)
}

/// The TLS configuration of a listener. If a client shows a certificate, it is verified; with
/// `require_client`, the client must show one.
///
/// # Errors
/// [`ErrorKind::Security`] for certificates and keys that cannot be used.
pub fn server(tls: &Tls) -> Result<Arc<ServerConfig>> {
    let operation = "listen";
    let own = tls.identity.as_ref().ok_or_else(|| {
        let hint = "make one with `thalweg pki issue` and set tls.identity";
        security(operation, "a server under tls needs a certificate of its own", hint)
    })?;
    let (chain, key) = identity(operation, own)?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(|e| unusable(operation, &e))?;
    let builder = if tls.authority.trim().is_empty() && !tls.require_client {
        builder.with_no_client_auth()
    } else {
        let trusted = Arc::new(roots(operation, &tls.authority)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(trusted, provider());
        let verifier = if tls.require_client { verifier } else { verifier.allow_unauthenticated() };
        builder.with_client_cert_verifier(verifier.build().map_err(|e| unusable(operation, &e))?)
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|e| unusable(operation, &e))?;
    config.send_tls13_tickets = 0; // no resumption: each link does a full handshake
    Ok(Arc::new(config))
}

/// The TLS configuration of a connection, and the name that the server's certificate must contain.
///
/// # Errors
/// [`ErrorKind::Security`] for certificates, keys and names that cannot be used.
pub fn client(address: &Address, tls: &Tls) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
    let operation = "connect";
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(|e| unusable(operation, &e))?
        .with_root_certificates(roots(operation, &tls.authority)?);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let (chain, key) = identity(operation, own)?;
            builder.with_client_auth_cert(chain, key).map_err(|e| unusable(operation, &e))?
        }
    };
    config.resumption = Resumption::disabled();
    let name = tls.server_name.as_ref().unwrap_or(&address.host);
    let name = ServerName::try_from(name.clone()).map_err(|e| {
        let hint = "set tls.server_name to a name in the server's certificate";
        security(operation, format!("{name:?} cannot be a certificate's name: {e}"), hint)
    })?;
    Ok((Arc::new(config), name))
}

/// The identity that the other end has shown, and the secret shared with it.
///
/// # Errors
/// [`ErrorKind::Security`] if the handshake is not complete.
pub fn peer<T>(operation: &'static str, address: String, stream: &TlsStream<T>) -> Result<Peer> {
    let (_, session) = stream.get_ref();
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let (certified, role) = certificate.map_or((None, None), |c| names(c));
    Ok(Peer { address, certified, role, binding: Some(exported(operation, stream, BINDING)?) })
}

/// A secret that only the two ends of the connection have (RFC 5705, exporter).
pub fn exported<T>(operation: &'static str, stream: &TlsStream<T>, label: &[u8]) -> Result<[u8; 32]> {
    let secret = match stream {
        TlsStream::Client(stream) => stream.get_ref().1.export_keying_material([0; 32], label, None),
        TlsStream::Server(stream) => stream.get_ref().1.export_keying_material([0; 32], label, None),
    };
    secret.map_err(|e| unusable(operation, &e))
}

/// The name and the role in a certificate (DER), of those that it has.
pub fn names(certificate: &[u8]) -> (Option<String>, Option<String>) {
    (name_of(certificate), role_of(certificate))
}

/// The common name of the certificate's subject, else its first DNS name.
fn name_of(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let common = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    let names = certificate.subject_alternative_name().ok().flatten();
    let dns = names.iter().flat_map(|names| &names.value.general_names).find_map(|name| match name {
        x509_parser::extensions::GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    common.or(dns).map(str::to_owned)
}

/// The organizational unit of the certificate's subject.
fn role_of(certificate: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let unit = certificate.subject().iter_organizational_unit().next().and_then(|unit| unit.as_str().ok());
    unit.map(str::to_owned)
}

/// An error if the first bytes of a peer are TLS although this end does not use TLS. They are TLS if they
/// begin a record (RFC 8446, section 5.1) of type handshake or alert, version 3.x.
pub fn unexpected(operation: &'static str, first: &[u8]) -> Option<Error> {
    matches!(first, [0x15 | 0x16, 3, ..]).then(|| {
        security(operation, "the peer speaks TLS, this end does not", "set tls at both ends, or at neither")
    })
}

/// Explains an error of a connection to `who` to a person.
pub fn explain(operation: &'static str, who: impl std::fmt::Display, error: &io::Error) -> Error {
    let Some(cause) = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) else {
        return Error::io(operation, who, error);
    };
    let (what, hint) = match cause {
        rustls::Error::InvalidCertificate(why) => untrusted(why),
        rustls::Error::AlertReceived(alert) => alerted(*alert),
        rustls::Error::NoCertificatesPresented => {
            ("showed no certificate, which this server requires".into(), ISSUE)
        }
        rustls::Error::InvalidMessage(_) => {
            ("does not speak TLS".into(), "set tls at both ends, or at neither")
        }
        rustls::Error::PeerIncompatible(_) => {
            ("speaks no TLS 1.3".into(), "use the same release at both ends")
        }
        rustls::Error::DecryptError => {
            let context = format!("{who} sent a record that does not decrypt");
            return Error::new(ErrorKind::Corrupt, operation, context);
        }
        other => (format!("failed: {other}"), "check the certificates at both ends"),
    };
    security(operation, format!("{who} {what}"), hint)
}

const ISSUE: &str = "make a certificate with `thalweg pki issue NAME` and set tls.identity";
const RENEW: &str = "issue a new one with `thalweg pki issue`, and check the clocks of both machines";
const AUTHORITY: &str = "give both ends the certificate of the same authority";

fn untrusted(why: &CertificateError) -> (String, &'static str) {
    use CertificateError as Bad;
    match why {
        Bad::Expired | Bad::ExpiredContext { .. } => ("shows a certificate that has expired".into(), RENEW),
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            ("shows a certificate that is not valid yet".into(), RENEW)
        }
        Bad::UnknownIssuer | Bad::BadSignature => {
            ("shows a certificate of an authority that is not trusted here".into(), AUTHORITY)
        }
        Bad::NotValidForName | Bad::NotValidForNameContext { .. } => (
            format!("shows a certificate for another name ({why})"),
            "connect by a name that is in the certificate, or set tls.server_name to one",
        ),
        Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => (
            "shows a certificate made for another purpose".into(),
            "use a server's certificate at the server and a client's at the client",
        ),
        other => (format!("shows a certificate that is refused: {other}"), "issue a new one"),
    }
}

fn alerted(alert: AlertDescription) -> (String, &'static str) {
    use AlertDescription as Alert;
    match alert {
        Alert::CertificateRequired => ("wants a certificate from us".into(), ISSUE),
        Alert::CertificateExpired => ("refused our certificate: it has expired".into(), RENEW),
        Alert::UnknownCA | Alert::DecryptError => {
            ("refused our certificate: it does not trust the authority".into(), AUTHORITY)
        }
        Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown => {
            (format!("refused our certificate ({alert:?})"), "issue a new one with `thalweg pki issue`")
        }
        other => (format!("ended the handshake ({other:?})"), "check the certificates at both ends"),
    }
}

/// Explains the alert with which a handshake with `who` ended. QUIC reports nothing else of it. `ours` is the
/// reason if this end sent the alert.
pub fn by_alert(
    operation: &'static str,
    who: impl std::fmt::Display,
    alert: u8,
    ours: Option<&str>,
) -> Error {
    use AlertDescription as Alert;
    let (what, hint) = match (AlertDescription::from(alert), ours) {
        (Alert::NoApplicationProtocol, _) => (
            "and this end differ in tls, or in their release".into(),
            "set tls at both ends, or at neither, and use the same release",
        ),
        (alert, None) => alerted(alert),
        (Alert::CertificateExpired, _) => ("shows a certificate that has expired".into(), RENEW),
        (Alert::UnknownCA | Alert::DecryptError, _) => {
            ("shows a certificate of an authority that is not trusted here".into(), AUTHORITY)
        }
        (Alert::CertificateRequired, _) => {
            ("showed no certificate, which this server requires".into(), ISSUE)
        }
        (_, Some(reason)) => (format!("failed: {reason}"), "check the certificates at both ends"),
    };
    security(operation, format!("{who} {what}"), hint)
}
