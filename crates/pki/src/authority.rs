//! A certificate authority for one job or one organization.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use ring::signature::{UnparsedPublicKey, ECDSA_P256_SHA256_ASN1};
use x509_parser::pem::parse_x509_pem;

use crate::{curve, PkiError, Role};

/// Longest validity of a certificate in days: a hundred years.
pub const MAX_DAYS: i64 = 36_525;
/// Clocks differ, so a certificate is valid this long before it is made.
const LEEWAY: Duration = Duration::hours(1);

/// A certificate with its key, both in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate in PEM.
    pub certificate: String,
    /// The private key in PEM. The secret CURVE key may follow it.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)") // a key never gets into a log
    }
}

/// Signs the certificates of a server and its clients. Their keys are ECDSA P-256.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    /// The PEM block of the secret CURVE key. Empty if the authority was made before it had such a key.
    curve: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority(..)")
    }
}

impl Authority {
    /// A new authority called `name`, valid for `days` days.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] for an invalid name or number of days.
    ///
    /// ```
    /// let authority = thalweg_pki::Authority::new("hospital job", 365)?;
    /// let server = authority.issue("server", &["10.0.0.1".into(), "fl.example.org".into()], 90, thalweg_pki::Role::Server)?;
    /// assert!(server.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
    /// # Ok::<(), thalweg_pki::PkiError>(())
    /// ```
    pub fn new(name: &str, days: i64) -> Result<Self, PkiError> {
        let failed = |e: rcgen::Error| certificate_error(name, e.to_string());
        let mut params = common(name, &[], days)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(failed)?;
        let (public, curve) = curve::pair()?;
        let certificate_pem = params.self_signed(&key).map_err(failed)?.pem() + &public;
        Ok(Self { issuer: Issuer::new(params, key), certificate_pem, curve })
    }

    /// Loads an authority that an earlier [`Authority::new`] made.
    ///
    /// # Errors
    /// [`PkiError::Authority`] if either text is not PEM, or if the key does not belong to the certificate.
    pub fn load(certificate_pem: &str, key_pem: &str) -> Result<Self, PkiError> {
        let bad = |what: &str, e: rcgen::Error| PkiError::Authority(format!("{what}: {e}"));
        let key = KeyPair::from_pem(key_pem).map_err(|e| bad("the key does not load", e))?;
        let public = public_key_of(certificate_pem)?;
        if public != key.public_key_raw() {
            return Err(PkiError::Authority("the key is not that of the certificate".into()));
        }
        let issuer = Issuer::from_ca_cert_pem(certificate_pem, key)
            .map_err(|e| bad("the certificate does not load", e))?;
        let curve = curve::secret_block(key_pem);
        Ok(Self { issuer, certificate_pem: certificate_pem.to_owned(), curve })
    }

    /// The certificate that every party trusts, followed by the public CURVE key.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key that signs, followed by the secret CURVE key. Keep it off the machines that only run jobs.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem() + &self.curve
    }

    /// Issues a certificate for `name` (its common name), `role` (its organizational unit) and `hosts` (names
    /// or addresses).
    ///
    /// It is valid for `days` days from now; with 0 or less it has already expired. A server's certificate is
    /// for servers only. Any other is for clients. With `hosts` it is for servers too: nodes of a tree or a
    /// graph both connect and listen. Clients connect to servers and to nodes of a tree, so the keys of these
    /// are followed by the secret CURVE key.
    ///
    /// # Errors
    /// [`PkiError::Certificate`] for an invalid name, host or number of days.
    pub fn issue(&self, name: &str, hosts: &[String], days: i64, role: Role) -> Result<Identity, PkiError> {
        let failed = |e: rcgen::Error| certificate_error(name, e.to_string());
        let mut params = common(name, hosts, days)?;
        params.distinguished_name.push(DnType::OrganizationalUnitName, role.name());
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match (role == Role::Server, hosts) {
            (true, _) => vec![ExtendedKeyUsagePurpose::ServerAuth],
            (false, []) => vec![ExtendedKeyUsagePurpose::ClientAuth],
            (false, _) => vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth],
        };
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed)?.pem();
        let serves = role == Role::Server || (role == Role::TreeNode && !hosts.is_empty());
        let curve = if serves { self.curve.as_str() } else { "" };
        Ok(Identity { certificate, key: key.serialize_pem() + curve })
    }

    /// Whether this authority has signed the first certificate of a PEM text. Its validity does not matter.
    ///
    /// # Errors
    /// [`PkiError::Unreadable`] if the text begins with no certificate.
    pub fn has_signed(&self, certificate_pem: &str) -> Result<bool, PkiError> {
        let unreadable = |e: String| PkiError::Unreadable(e);
        let (_, pem) = parse_x509_pem(certificate_pem.as_bytes()).map_err(|e| unreadable(e.to_string()))?;
        let certificate = pem.parse_x509().map_err(|e| unreadable(e.to_string()))?;
        let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, self.issuer.key().public_key_raw());
        let signature = &certificate.signature_value.data;
        Ok(key.verify(certificate.tbs_certificate.as_ref(), signature).is_ok())
    }
}

fn certificate_error(name: &str, cause: impl Into<String>) -> PkiError {
    PkiError::Certificate { name: name.to_owned(), cause: cause.into() }
}

/// The fields that all certificates have: names and dates. With `days <= 0`, the certificate ended that many
/// days ago.
fn common(name: &str, hosts: &[String], days: i64) -> Result<CertificateParams, PkiError> {
    // RFC 5280, appendix A.1, limits a common name to 64 characters.
    if name.trim().is_empty() || name.chars().count() > 64 || name.chars().any(char::is_control) {
        return Err(certificate_error(name, "a name has 1 to 64 printable characters"));
    }
    if !(-MAX_DAYS..=MAX_DAYS).contains(&days) {
        return Err(certificate_error(name, format!("{days} days is not within {MAX_DAYS}")));
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = hosts.iter().map(|host| alternative(name, host)).collect::<Result<_, _>>()?;
    let now = OffsetDateTime::now_utc();
    params.not_after =
        if days > 0 { now + Duration::days(days) } else { now - LEEWAY + Duration::days(days) };
    params.not_before = now.min(params.not_after) - LEEWAY;
    Ok(params)
}

fn alternative(name: &str, host: &str) -> Result<SanType, PkiError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let label = |l: &str| {
        (1..=63).contains(&l.len()) && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    if host.len() > 253 || !host.strip_prefix("*.").unwrap_or(host).split('.').all(label) {
        return Err(certificate_error(name, format!("{host:?} is neither a host name nor an address")));
    }
    let dns = host.try_into().map_err(|e: rcgen::Error| certificate_error(name, e.to_string()))?;
    Ok(SanType::DnsName(dns))
}

fn public_key_of(certificate_pem: &str) -> Result<Vec<u8>, PkiError> {
    let bad = |e: String| PkiError::Authority(format!("the certificate does not load: {e}"));
    let (_, pem) = parse_x509_pem(certificate_pem.as_bytes()).map_err(|e| bad(e.to_string()))?;
    let certificate = pem.parse_x509().map_err(|e| bad(e.to_string()))?;
    Ok(certificate.public_key().subject_public_key.data.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use x509_parser::prelude::*;

    fn parsed<T>(identity: &Identity, check: impl FnOnce(&X509Certificate<'_>) -> T) -> T {
        let (_, pem) = x509_parser::pem::parse_x509_pem(identity.certificate.as_bytes()).unwrap();
        check(&pem.parse_x509().unwrap())
    }

    fn unit(certificate: &X509Certificate<'_>) -> String {
        certificate.subject().iter_organizational_unit().next().unwrap().as_str().unwrap().to_owned()
    }

    #[test]
    fn only_who_serves_clients_has_the_key_for_curve() {
        let authority = Authority::new("job", 10).unwrap();
        let here = ["a".to_owned()];
        for (role, hosts, has) in [
            (Role::Server, &here[..], true),
            (Role::TreeNode, &here[..], true),
            (Role::TreeNode, &[], false),
            (Role::GraphNode, &here[..], false),
            (Role::Client, &[], false),
        ] {
            let issued = authority.issue("a", hosts, 5, role).unwrap();
            assert_eq!(issued.key.contains("CURVE"), has, "{role} {hosts:?}");
        }
    }

    #[test]
    fn a_certificate_says_who_where_and_what_for() {
        let authority = Authority::new("job", 10).unwrap();
        let hosts = ["fl.example.org".to_owned(), "10.0.0.1".into(), "::1".into()];
        let server = authority.issue("server", &hosts, 5, Role::Server).unwrap();
        parsed(&server, |c| {
            assert_eq!(unit(c), "server");
            assert_eq!(c.subject().iter_common_name().next().unwrap().as_str().unwrap(), "server");
            assert_eq!(c.issuer().iter_common_name().next().unwrap().as_str().unwrap(), "job");
            let names = c.subject_alternative_name().unwrap().unwrap();
            assert_eq!(names.value.general_names.len(), 3);
            let purpose = c.extended_key_usage().unwrap().unwrap().value;
            assert!(purpose.server_auth && !purpose.client_auth);
            assert!(c.validity().is_valid() && !c.is_ca());
        });
        let client = authority.issue("clinic", &[], 5, Role::Client).unwrap();
        parsed(&client, |c| {
            assert_eq!(unit(c), "client");
            let purpose = c.extended_key_usage().unwrap().unwrap().value;
            assert!(purpose.client_auth && !purpose.server_auth);
        });
        let node = authority.issue("anna", &hosts, 5, Role::GraphNode).unwrap();
        parsed(&node, |c| {
            assert_eq!(unit(c), "graph-node");
            assert_eq!(c.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 3);
            let purpose = c.extended_key_usage().unwrap().unwrap().value;
            assert!(purpose.client_auth && purpose.server_auth);
        });
        assert_eq!(format!("{client:?} {authority:?}"), "Identity(..) Authority(..)");
    }

    #[test]
    fn an_authority_knows_what_it_has_signed() {
        let (own, other) = (Authority::new("job", 10).unwrap(), Authority::new("job", 10).unwrap());
        let expired = own.issue("anna", &[], -1, Role::Client).unwrap().certificate;
        assert!(own.has_signed(&expired).unwrap());
        assert!(!other.has_signed(&expired).unwrap());
        assert!(own.has_signed(own.certificate_pem()).unwrap());
        assert!(own.has_signed("anna").is_err());
    }

    #[test]
    fn zero_and_negative_days_have_expired() {
        let authority = Authority::new("job", 10).unwrap();
        for days in [0, -1, -400] {
            let expired = authority.issue("late", &[], days, Role::Client).unwrap();
            parsed(&expired, |c| {
                assert!(!c.validity().is_valid() && c.validity().not_after > c.validity().not_before)
            });
        }
    }

    #[test]
    fn a_loaded_authority_signs_as_before() {
        let made = Authority::new("job", 10).unwrap();
        let loaded = Authority::load(made.certificate_pem(), &made.key_pem()).unwrap();
        let (before, after) = (
            made.issue("a", &[], 1, Role::Server).unwrap(),
            loaded.issue("b", &[], 1, Role::Server).unwrap(),
        );
        let issuer_and_key = |c: &X509Certificate<'_>| {
            let key = c.extensions().iter().find_map(|e| match e.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    id.key_identifier.as_ref().map(|k| k.0.to_vec())
                }
                _ => None,
            });
            (c.issuer().to_string(), key)
        };
        let (before, after) = (parsed(&before, issuer_and_key), parsed(&after, issuer_and_key));
        assert!(before.1.is_some());
        assert_eq!(before, after);
    }

    #[test]
    fn refuses_with_the_hint() {
        let made = Authority::new("job", 10).unwrap();
        let other = Authority::new("job", 10).unwrap();
        let error = Authority::load(made.certificate_pem(), &other.key_pem()).unwrap_err().to_string();
        assert!(error.contains("not that of the certificate") && error.contains("pki init"), "{error}");
        assert!(Authority::load("", &made.key_pem()).is_err());
        assert!(Authority::load(made.certificate_pem(), "none").is_err());
        for (name, host, days) in
            [("", "a", 1), ("x", "a b", 1), ("x", "", 1), ("x", "a..b", 1), ("x", "a", MAX_DAYS + 1)]
        {
            assert!(
                made.issue(name, &[host.into()], days, Role::Client).is_err(),
                "{name:?} {host:?} {days}"
            );
        }
        assert!(made.issue(&"n".repeat(65), &[], 1, Role::Client).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn any_input_is_signed_or_refused(name in "\\PC{0,70}", host in "\\PC{0,20}", days: i64) {
            let authority = Authority::new("job", 10).unwrap();
            let issued = authority.issue(&name, &[host], days, Role::Server);
            if let Ok(identity) = issued {
                let found = parsed(&identity, |c| {
                    c.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned()
                });
                prop_assert_eq!(found, name);
            }
        }
    }
}
