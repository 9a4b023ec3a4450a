//! Functions of the module: transports, build information, certificates and tokens, probes.

use pyo3::prelude::*;
use serde_json::json;
use thalweg_pki as pki;
use thalweg_runtime as runtime;
use thalweg_wire::text;

use crate::errors::{core_error, raise};
use crate::{interruptibly, limit, Signals};

fn pki_error(error: pki::PkiError) -> PyErr {
    raise(runtime::Error::new(runtime::Kind::Security, "", error.cause()).hint(error.hint()))
}

/// Returns all transports of this release, as a JSON list.
#[pyfunction]
pub fn transports() -> PyResult<String> {
    serde_json::to_string(&runtime::registry())
        .map_err(|e| core_error(thalweg_runtime::Kind::System, "", e.to_string()))
}

/// Returns the RDMA devices of this machine, as a JSON list. Raises `unsupported` with a hint if there are
/// none.
#[pyfunction]
pub fn rdma_devices() -> PyResult<String> {
    let devices = runtime::rdma_devices().map_err(raise)?;
    serde_json::to_string(&devices).map_err(|e| core_error(thalweg_runtime::Kind::System, "", e.to_string()))
}

/// Returns the text as one line of at most `most` bytes, without control and format characters. It is safe to
/// show and to log.
#[pyfunction]
pub fn plain_text(text: &str, most: usize) -> String {
    text::plain(text, most)
}

/// Returns version, commit and target of this build, as JSON.
#[pyfunction]
pub fn build_info() -> String {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": option_env!("THALWEG_COMMIT"),
        "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        "debug": cfg!(debug_assertions),
    })
    .to_string()
}

/// Makes a certificate authority. Returns `(certificate, key)` in PEM.
#[pyfunction]
pub fn pki_authority(name: &str, days: i64) -> PyResult<(String, String)> {
    let authority = pki::Authority::new(name, days).map_err(pki_error)?;
    Ok((authority.certificate_pem().to_owned(), authority.key_pem()))
}

/// Issues a certificate of the authority for the name `name` and a role, valid for the addresses `hosts` and
/// for `days` days. Returns `(certificate, key)` in PEM.
#[pyfunction]
pub fn pki_issue(
    ca_cert: &str,
    ca_key: &str,
    name: &str,
    hosts: Vec<String>,
    days: i64,
    role: &str,
) -> PyResult<(String, String)> {
    let authority = pki::Authority::load(ca_cert, ca_key).map_err(pki_error)?;
    let identity =
        authority.issue(name, &hosts, days, role.parse().map_err(pki_error)?).map_err(pki_error)?;
    Ok((identity.certificate, identity.key))
}

/// Returns what a certificate in PEM says, as a JSON object: `name`, `role`, `hosts`, `not_before` and
/// `not_after` (seconds since 1970). It is not verified.
#[pyfunction]
pub fn pki_describe(certificate: &str) -> PyResult<String> {
    let said = pki::Described::of(certificate).map_err(pki_error)?;
    Ok(serde_json::json!({
        "name": said.name, "role": said.role, "hosts": said.hosts,
        "not_before": said.not_before, "not_after": said.not_after,
    })
    .to_string())
}

/// Whether the authority with this certificate and key has signed a certificate.
#[pyfunction]
pub fn pki_has_signed(ca_cert: &str, ca_key: &str, certificate: &str) -> PyResult<bool> {
    let authority = pki::Authority::load(ca_cert, ca_key).map_err(pki_error)?;
    authority.has_signed(certificate).map_err(pki_error)
}

/// Returns the names of all kinds of the core's errors.
#[pyfunction]
pub fn error_kinds() -> Vec<&'static str> {
    runtime::Kind::ALL.map(runtime::Kind::name).into()
}

/// Returns the names of the roles for which tokens and certificates can be issued.
#[pyfunction]
pub fn pki_roles() -> Vec<&'static str> {
    pki::Role::issued().map(pki::Role::name).collect()
}

/// Makes a new secret for issuing tokens. Returns it in hex.
#[pyfunction]
pub fn pki_secret() -> PyResult<String> {
    pki::Secret::generate().map(|s| s.to_hex()).map_err(pki_error)
}

/// Returns the public key of a secret in hex. Servers check tokens with it.
#[pyfunction]
pub fn pki_issuer(secret: &str) -> PyResult<String> {
    Ok(pki::Secret::parse(secret).map_err(pki_error)?.issuer().to_hex())
}

/// Issues a new token for a role and a name. `secret` signs its credential. Returns the token in hex.
#[pyfunction]
pub fn pki_token(secret: &str, role: &str, name: &str) -> PyResult<String> {
    let role = role.parse().map_err(pki_error)?;
    let token = pki::Secret::parse(secret).and_then(|secret| secret.issue(role, name));
    Ok(token.map_err(pki_error)?.to_hex())
}

/// Checks a client's proof for this job that a node has forwarded. Returns the client's name. `issuer` and
/// `token` are a server's options.
#[pyfunction]
pub fn pki_check_forwarded_proof(
    issuer: Option<&str>,
    token: Option<&str>,
    job: u64,
    proof: &[u8],
) -> PyResult<String> {
    runtime::check_forwarded_proof(issuer, token, job, proof).map_err(raise)
}

/// Measures over loopback, in turns, the goodput of one raw TCP stream, of `streams` streams at once, and of
/// thalweg, and the round trip of a control message. Each transfer has `bytes` bytes. Returns JSON.
#[pyfunction]
#[pyo3(signature = (bytes, streams=1))]
pub fn probe_loopback(py: Python<'_>, bytes: u64, streams: usize) -> PyResult<String> {
    interruptibly(py, move || runtime::probe::loopback(bytes, streams))
}

/// Answers probes at `listen` for `seconds` seconds, or until interrupted.
#[pyfunction]
pub fn probe_serve(py: Python<'_>, listen: &str, config: &str, seconds: Option<f64>) -> PyResult<()> {
    let limit = limit(seconds);
    let signals = Signals::default();
    py.detach(|| runtime::probe::serve(listen, config, limit, || signals.none())).map_err(raise)?;
    signals.raise()
}

/// Measures the goodput of a raw TCP stream and of thalweg to a peer that serves probes. Returns JSON.
#[pyfunction]
pub fn probe_peer(py: Python<'_>, url: &str, config: &str, bytes: u64) -> PyResult<String> {
    let (url, config) = (url.to_owned(), config.to_owned());
    interruptibly(py, move || runtime::probe::peer(&url, &config, bytes, 1))
}
