//! The file a client is handed.
//!
//! ```text
//! thalweg token 1
//! name = clinic-3
//! token = 64 hexadecimal digits
//! -----BEGIN CERTIFICATE-----
//! (the authority's, if links are encrypted; there may be several)
//! -----END CERTIFICATE-----
//! ```
//!
//! Empty lines and lines that begin with `#` do not count. A file with one bare word is a token that all
//! clients share.

use crate::{PkiError, Token};

/// Most bytes of a token file.
pub const MAX_FILE: usize = 256 << 10;
/// Most bytes of a party's name.
pub const MAX_NAME: usize = 128;
const FIRST_LINE: &str = "thalweg token 1";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
/// The authority's public key for CURVE, which is no certificate and travels with them.
const BEGIN_CURVE: &str = "-----BEGIN THALWEG CURVE PUBLIC KEY-----";
const END_CURVE: &str = "-----END THALWEG CURVE PUBLIC KEY-----";

/// A client's name and token, and whom it trusts.
#[derive(Debug, Clone)]
pub struct TokenFile {
    /// The name the token is for; `None` if all clients share it.
    pub name: Option<String>,
    /// The token.
    pub token: Token,
    /// Certificates of the authorities trusted, in PEM; `None` if there are none.
    pub authority: Option<String>,
}

impl TokenFile {
    /// The file for the client called `name`; `authority` is PEM, or empty.
    ///
    /// # Errors
    /// [`PkiError::Name`], or [`PkiError::TokenFile`] if `authority` is more or less than certificates.
    pub fn new(name: &str, token: Token, authority: &str) -> Result<Self, PkiError> {
        if !is_name(name) {
            return Err(PkiError::Name(name.to_owned()));
        }
        let mut reader = Reader::default();
        for (index, line) in authority.lines().enumerate() {
            reader.certificate_line(index + 1, line.trim())?;
        }
        let authority = reader.authority(authority.lines().count())?;
        Ok(Self { name: Some(name.to_owned()), token, authority })
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`PkiError::TokenFile`] with the line and what is wrong there; the token itself is never repeated.
    pub fn parse(text: &str) -> Result<Self, PkiError> {
        if text.len() > MAX_FILE {
            let cause = format!("{} bytes; a token file has at most {MAX_FILE}", text.len());
            return Err(PkiError::TokenFile { line: 1, cause });
        }
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let Some((line, first)) = lines.next() else { return Err(bad(1, "the file is empty")) };
        if first == FIRST_LINE {
            return Reader::read(lines, text.lines().count());
        }
        if lines.next().is_some() || first.contains(char::is_whitespace) {
            return Err(bad(line, format!("it begins neither with {FIRST_LINE:?} nor is it one word")));
        }
        Ok(Self { name: None, token: Token::parse(first)?, authority: None })
    }
}

impl std::fmt::Display for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(name) = &self.name else { return writeln!(f, "{}", self.token.to_hex()) };
        writeln!(f, "{FIRST_LINE}\nname = {name}\ntoken = {}", self.token.to_hex())?;
        f.write_str(self.authority.as_deref().unwrap_or_default())
    }
}

fn bad(line: usize, cause: impl Into<String>) -> PkiError {
    PkiError::TokenFile { line, cause: cause.into() }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.trim() == name && !name.chars().any(char::is_control)
}

/// What has been read so far.
#[derive(Default)]
struct Reader {
    name: Option<String>,
    token: Option<Token>,
    certificates: String,
    /// The line that ends the block it is in.
    inside: Option<&'static str>,
}

impl Reader {
    fn read<'a>(lines: impl Iterator<Item = (usize, &'a str)>, last: usize) -> Result<TokenFile, PkiError> {
        let mut reader = Self::default();
        for (number, line) in lines {
            if reader.inside.is_some() || line == BEGIN || line == BEGIN_CURVE {
                reader.certificate_line(number, line)?;
            } else {
                reader.field(number, line)?;
            }
        }
        let authority = reader.authority(last)?;
        let name = reader.name.ok_or_else(|| bad(last, "there is no `name = `"))?;
        let token = reader.token.ok_or_else(|| bad(last, "there is no `token = `"))?;
        Ok(TokenFile { name: Some(name), token, authority })
    }

    fn field(&mut self, number: usize, line: &str) -> Result<(), PkiError> {
        let (key, value) = line.split_once('=').ok_or_else(|| bad(number, "it is not `key = value`"))?;
        let value = value.trim();
        let twice = match key.trim() {
            "name" if !is_name(value) => return Err(PkiError::Name(value.to_owned())),
            "name" => self.name.replace(value.to_owned()).is_some(),
            "token" => {
                let bytes = crate::hex::decode(value).map_err(|cause| bad(number, cause))?;
                self.token.replace(Token::from_bytes(bytes)).is_some()
            }
            other => return Err(bad(number, format!("unknown key {other:?}; there are name and token"))),
        };
        if twice {
            Err(bad(number, "the key is there twice"))
        } else {
            Ok(())
        }
    }

    fn certificate_line(&mut self, number: usize, line: &str) -> Result<(), PkiError> {
        let base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
        match (self.inside, line) {
            (None, "") => return Ok(()),
            (None, BEGIN) => self.inside = Some(END),
            (None, BEGIN_CURVE) => self.inside = Some(END_CURVE),
            (Some(end), line) if line == end => self.inside = None,
            (Some(_), data) if !data.is_empty() && data.bytes().all(base64) => {}
            _ => return Err(bad(number, "it is not part of a certificate in PEM")),
        }
        self.certificates.push_str(line);
        self.certificates.push('\n');
        Ok(())
    }

    fn authority(&mut self, last: usize) -> Result<Option<String>, PkiError> {
        if self.inside.is_some() {
            return Err(bad(last, "a certificate does not end"));
        }
        let certificates = std::mem::take(&mut self.certificates);
        Ok((!certificates.is_empty()).then_some(certificates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        TokenFile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn round_trips_with_an_authority() {
        let authority = Authority::new("job", 1).unwrap();
        let token = Token::from_bytes([5; 32]);
        let file = TokenFile::new("clinic-3", token, authority.certificate_pem()).unwrap();
        let read = TokenFile::parse(&file.to_string()).unwrap();
        assert_eq!(read.name.as_deref(), Some("clinic-3"));
        assert_eq!(read.token.to_hex(), "05".repeat(32));
        assert_eq!(read.authority, file.authority);
        let pem = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(pem(&read.authority.unwrap()), pem(authority.certificate_pem()));
    }

    #[test]
    fn comments_and_order_do_not_matter() {
        let text =
            format!("# for site 3\n\nthalweg token 1\r\ntoken={}\n\n# who\n name =  a b \n", "0F".repeat(32));
        let file = TokenFile::parse(&text).unwrap();
        assert_eq!(file.name.as_deref(), Some("a b"));
        assert_eq!((file.token.to_hex(), file.authority), ("0f".repeat(32), None));
    }

    #[test]
    fn one_word_is_a_shared_token() {
        let file = TokenFile::parse("correct-horse\n").unwrap();
        assert_eq!((file.name.clone(), file.token.to_hex()), (None, Token::shared("correct-horse").to_hex()));
        let again = TokenFile::parse(&file.to_string()).unwrap();
        assert_eq!(again.token.to_hex(), file.token.to_hex());
    }

    #[test]
    fn errors_name_the_line_and_the_mend() {
        let head = "thalweg token 1\n";
        let token = format!("token = {}\n", "a".repeat(64));
        let cases = [
            (String::new(), "line 1: the file is empty"),
            ("thalweg token 2\nname = a\n".into(), "line 1: it begins neither"),
            (format!("{head}name = a\n"), "line 2: there is no `token = `"),
            (format!("{head}{token}"), "line 2: there is no `name = `"),
            (format!("{head}name = a\n{token}{token}"), "line 4: the key is there twice"),
            (format!("{head}nmae = a\n"), "line 2: unknown key \"nmae\""),
            (format!("{head}name = a\ntoken = 12\n"), "line 3: 2 characters"),
            (format!("{head}token = {}\n", "g".repeat(64)), "line 2: a character that is no"),
            (format!("{head}hello\n"), "line 2: it is not `key = value`"),
            (format!("{head}name = a\n{token}{BEGIN}\nab!\n"), "line 5: it is not part"),
            (format!("{head}name = a\n{token}{BEGIN}\nab\n"), "line 5: a certificate does not end"),
            ("x".repeat(MAX_FILE + 1), "at most"),
        ];
        for (text, expected) in cases {
            let found = error(&text);
            assert!(found.contains(expected) && found.contains("ask the operator"), "{found}");
        }
        assert!(error(&format!("{head}name = \n")).contains("choose another"));
        assert!(TokenFile::new("a\nb", Token::from_bytes([0; 32]), "").is_err());
        assert!(TokenFile::new("a", Token::from_bytes([0; 32]), "no certificate").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
            let _ = TokenFile::parse(&text);
            let _ = TokenFile::parse(&format!("{FIRST_LINE}\n{text}"));
        }

        #[test]
        fn any_name_round_trips_or_is_refused(name: String, token: [u8; 32]) {
            if let Ok(file) = TokenFile::new(&name, Token::from_bytes(token), "") {
                let read = TokenFile::parse(&file.to_string()).unwrap();
                prop_assert_eq!(read.name, Some(name));
                prop_assert_eq!(read.token.to_hex(), crate::hex::encode(&token));
            }
        }
    }
}
