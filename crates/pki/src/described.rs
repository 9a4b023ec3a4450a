//! What a certificate says, for people and for renewal.

use std::net::{Ipv4Addr, Ipv6Addr};

use x509_parser::extensions::GeneralName;
use x509_parser::pem::parse_x509_pem;

use crate::PkiError;

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The common name of its subject; empty if it has none.
    pub name: String,
    /// The role: the organizational unit of its subject. An authority has none.
    pub role: Option<String>,
    /// The names and addresses by which others reach its holder.
    pub hosts: Vec<String>,
    /// From when it is valid, in seconds since 1970 (UTC).
    pub not_before: i64,
    /// Until when.
    pub not_after: i64,
}

impl Described {
    /// Reads the first certificate of a PEM text. It is not verified.
    ///
    /// # Errors
    /// [`PkiError::Unreadable`] if the text begins with no certificate.
    pub fn of(pem: &str) -> Result<Self, PkiError> {
        let unreadable = |why: String| PkiError::Unreadable(why);
        let (_, block) = parse_x509_pem(pem.as_bytes()).map_err(|e| unreadable(e.to_string()))?;
        let certificate = block.parse_x509().map_err(|e| unreadable(e.to_string()))?;
        let subject = certificate.subject();
        let text =
            |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(str::to_owned);
        let names = certificate.subject_alternative_name().map_err(|e| unreadable(e.to_string()))?;
        let hosts = names.iter().flat_map(|names| &names.value.general_names).filter_map(host).collect();
        let name = subject.iter_common_name().next().and_then(text).unwrap_or_default();
        let role = subject.iter_organizational_unit().next().and_then(text);
        Ok(Self {
            name,
            role,
            hosts,
            not_before: certificate.validity().not_before.timestamp(),
            not_after: certificate.validity().not_after.timestamp(),
        })
    }
}

/// A name or an address; `None` for other kinds, which this crate does not write.
fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match **bytes {
            [a, b, c, d] => Some(Ipv4Addr::new(a, b, c, d).to_string()),
            ref bytes => <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).to_string()),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Authority, Role};

    #[test]
    fn a_certificate_says_all_that_it_was_issued_with() {
        let authority = Authority::new("job", 10).unwrap();
        let hosts = ["fl.example.org", "10.0.0.1", "::1", "2001:db8::7"].map(String::from);
        let issued = authority.issue("west", &hosts, 5, Role::TreeNode).unwrap();
        let said = Described::of(&issued.certificate).unwrap();
        assert_eq!((said.name.as_str(), said.role.as_deref()), ("west", Some("tree-node")));
        assert_eq!(said.hosts, hosts);
        // Five days, and an hour for clocks that differ.
        assert_eq!(said.not_after - said.not_before, 5 * 86_400 + 3600);
        let own = Described::of(authority.certificate_pem()).unwrap();
        assert_eq!((own.name.as_str(), own.role, own.hosts), ("job", None, vec![]));
    }

    #[test]
    fn a_text_that_is_no_certificate_is_refused() {
        let authority = Authority::new("job", 10).unwrap();
        for text in ["", "anna", authority.key_pem().as_str()] {
            assert!(Described::of(text).unwrap_err().to_string().contains("thalweg pki"), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}", cut in 0usize..700) {
            _ = Described::of(&text);
            let whole = Authority::new("job", 1).unwrap().certificate_pem().to_owned();
            _ = Described::of(whole.get(..cut).unwrap_or(&whole));
        }
    }
}
