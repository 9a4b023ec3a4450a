//! Links without certificates. QUIC encrypts them too, but neither end proves who it is, so somebody on the
//! path could impersonate both. So they count as unencrypted: they have no shared secret
//! ([`thalweg_transport::Peer::binding`]), and only ends without certificates accept them.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{ring, verify_tls13_signature, CryptoProvider};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use thalweg_pki::{Authority, Role};
use thalweg_sockets::tls;
use thalweg_transport::{Error, ErrorKind, Identity, Result, Tls};

/// The name in each listener's certificate.
pub(crate) const NAME: &str = "unverified.thalweg";
/// Days for which such a certificate could be used. Nobody checks that.
const DAYS: i64 = 365;

/// A configuration with a certificate made for this listener alone.
pub(crate) fn server() -> Result<ServerConfig> {
    let failed = |e: thalweg_pki::PkiError| Error::new(ErrorKind::System, "listen", e.to_string());
    let authority = Authority::new(NAME, DAYS).map_err(failed)?;
    let made = authority.issue(NAME, &[NAME.to_owned()], DAYS, Role::Server).map_err(failed)?;
    let identity = Some(Identity { certificate: made.certificate, key: made.key });
    let tls = Tls { authority: String::new(), identity, require_client: false, server_name: None };
    Ok((*tls::server(&tls)?).clone())
}

/// A configuration that takes any certificate.
pub(crate) fn client() -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| Error::new(ErrorKind::System, "connect", e.to_string()))?;
    let verifier = Arc::new(AnyCertificate(provider));
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Takes any certificate whose key has signed the handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::InvalidCertificate(CertificateError::BadSignature)) // QUIC has TLS 1.3 only
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
