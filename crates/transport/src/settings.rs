//! Settings that only one transport has. The transport declares them as data: plans are checked against these
//! declarations, and the documentation lists them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// Maximum number of bytes of a text value.
const TEXT: usize = 200;

/// A setting of a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its key in a plan's `[transport.options]`.
    pub name: &'static str,
    /// The values that the setting may have, and its default.
    pub kind: Kind,
    /// What the setting does, for people.
    pub meaning: &'static str,
    /// What must hold for the setting to have an effect. If it does not hold, every value but the default is
    /// refused.
    pub needs: &'static [Need],
}

/// A condition for a setting to have an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Need {
    /// Another setting has one of these values.
    Word {
        /// Name of the other setting.
        name: &'static str,
        /// The values of which the other setting must have one.
        among: &'static [&'static str],
    },
    /// The number is at most the chunk's length plus `beside`. [`Settings::read`] does not know the chunk's
    /// length, so only the check of a plan enforces this.
    Chunk {
        /// Bytes that are added to the chunk's length.
        beside: u64,
    },
}

/// The type of a setting's value, with its limits and its default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Kind {
    /// True or false.
    Flag {
        /// Value if none is set.
        default: bool,
    },
    /// A whole number.
    Number {
        /// Value if none is set.
        default: u64,
        /// Least value.
        least: u64,
        /// Greatest value.
        most: u64,
    },
    /// A fraction from 0 to 1.
    Share {
        /// Value if none is set.
        default: Fraction,
    },
    /// One of several words.
    Choice {
        /// Value if none is set.
        default: &'static str,
        /// The allowed words.
        choices: &'static [&'static str],
    },
    /// Any text of up to 200 bytes.
    Text {
        /// Value if none is set.
        default: &'static str,
    },
}

impl Kind {
    fn default(self) -> Value {
        match self {
            Kind::Flag { default } => Value::Flag(default),
            Kind::Number { default, .. } => Value::Number(default),
            Kind::Share { default } => Value::Share(default),
            Kind::Choice { default, .. } | Kind::Text { default } => Value::Text(default.into()),
        }
    }

    fn allows(self, value: &Value) -> bool {
        match (self, value) {
            (Kind::Flag { .. }, Value::Flag(_)) => true,
            (Kind::Number { least, most, .. }, Value::Number(n)) => (least..=most).contains(n),
            // The numbers 0 and 1 are fractions too.
            (Kind::Share { .. }, Value::Number(0 | 1) | Value::Share(_)) => true,
            (Kind::Choice { choices, .. }, Value::Text(text)) => choices.contains(&text.as_str()),
            (Kind::Text { .. }, Value::Text(text)) => text.len() <= TEXT,
            _ => false,
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Flag { .. } => f.write_str("true or false"),
            Kind::Number { least, most, .. } => write!(f, "a whole number from {least} to {most}"),
            Kind::Share { .. } => f.write_str("a share from 0 to 1"),
            Kind::Choice { choices, .. } => write!(f, "one of {}", choices.join(", ")),
            Kind::Text { .. } => write!(f, "text of up to {TEXT} bytes"),
        }
    }
}

/// A fraction from 0 to 1, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Fraction(u32);

impl Fraction {
    const WHOLE: u32 = 1_000_000;

    /// A fraction of `count` millionths; more than a million counts as 1.
    pub const fn millionths(count: u32) -> Self {
        Self(if count > Self::WHOLE { Self::WHOLE } else { count })
    }
}

impl From<Fraction> for f64 {
    fn from(share: Fraction) -> f64 {
        f64::from(share.0) / f64::from(Fraction::WHOLE)
    }
}

impl TryFrom<f64> for Fraction {
    type Error = &'static str;

    fn try_from(share: f64) -> std::result::Result<Self, Self::Error> {
        let fits = (0.0..=1.0).contains(&share);
        fits.then(|| Self((share * f64::from(Self::WHOLE)).round() as u32)).ok_or("a share is from 0 to 1")
    }
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// True or false.
    Flag(bool),
    /// A whole number.
    Number(u64),
    /// A fraction.
    Share(Fraction),
    /// A word or any text.
    Text(String),
}

/// The settings that were set, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Settings(BTreeMap<String, Value>);

impl Settings {
    /// The same settings with one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.into(), value);
        self
    }

    /// Whether no setting was set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the value of each setting in `declared`: the one that was set, or the default.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] names a setting that is not declared, that has a value which it may not
    /// have, or that has no effect beside the others.
    pub fn read(&self, declared: &'static [Setting]) -> Result<Chosen> {
        let bad = |context: String| Err(Error::new(ErrorKind::Unsupported, "read options", context));
        let mut chosen: BTreeMap<_, _> = declared.iter().map(|s| (s.name, s.kind.default())).collect();
        for (name, value) in &self.0 {
            match declared.iter().find(|setting| setting.name == name) {
                None if declared.is_empty() => {
                    return bad(format!("{name:?} is not known, this transport has no options of its own"))
                }
                None => {
                    let known: Vec<&str> = declared.iter().map(|setting| setting.name).collect();
                    return bad(format!("{name:?} is not among its options: {}", known.join(", ")));
                }
                Some(setting) if !setting.kind.allows(value) => {
                    return bad(format!("{name} must be {}", setting.kind))
                }
                Some(setting) => chosen.insert(setting.name, value.clone()),
            };
        }
        let chosen = Chosen(chosen);
        let set =
            declared.iter().filter(|s| self.0.get(s.name).is_some_and(|value| *value != s.kind.default()));
        for setting in set {
            for need in setting.needs {
                let Need::Word { name, among } = need else { continue };
                let word = chosen.text(name);
                if !among.contains(&word) {
                    let (setting, among) = (setting.name, among.join(" or "));
                    return bad(format!(
                        "{setting} has no effect with {name} = {word:?}; it is for {name} = {among}"
                    ));
                }
            }
        }
        Ok(chosen)
    }
}

/// Every setting of a transport, with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen(BTreeMap<&'static str, Value>);

impl Chosen {
    /// Value of a fraction, from 0 to 1. 0 if the setting was not declared as one.
    pub fn share(&self, name: &str) -> f64 {
        match self.0.get(name) {
            Some(Value::Share(share)) => (*share).into(),
            Some(Value::Number(1)) => 1.0,
            _ => 0.0,
        }
    }

    /// Value of a flag. False if the setting was not declared as one.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.0.get(name), Some(Value::Flag(true)))
    }

    /// Value of a number. 0 if the setting was not declared as one.
    pub fn number(&self, name: &str) -> u64 {
        if let Some(Value::Number(number)) = self.0.get(name) {
            *number
        } else {
            0
        }
    }

    /// Value of a word or a text. Empty if the setting was not declared as either.
    pub fn text(&self, name: &str) -> &str {
        if let Some(Value::Text(text)) = self.0.get(name) {
            text
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &[Setting] = &[
        Setting {
            name: "qos",
            kind: Kind::Number { default: 1, least: 0, most: 2 },
            meaning: "",
            needs: &[],
        },
        Setting {
            name: "retain",
            kind: Kind::Flag { default: false },
            meaning: "",
            needs: &[Need::Word { name: "mode", among: &["stream"] }, Need::Chunk { beside: 0 }],
        },
        Setting {
            name: "mode",
            kind: Kind::Choice { default: "stream", choices: &["stream", "unary"] },
            meaning: "",
            needs: &[],
        },
        Setting {
            name: "part",
            kind: Kind::Share { default: Fraction::millionths(20_000) },
            meaning: "",
            needs: &[],
        },
        Setting { name: "topic", kind: Kind::Text { default: "thalweg" }, meaning: "", needs: &[] },
    ];

    fn set(json: &str) -> Result<Chosen> {
        serde_json::from_str::<Settings>(json).unwrap().read(DECLARED)
    }

    #[test]
    fn what_is_not_set_has_its_default() {
        let chosen = set("{}").unwrap();
        assert_eq!((chosen.number("qos"), chosen.flag("retain")), (1, false));
        assert_eq!((chosen.text("mode"), chosen.text("topic")), ("stream", "thalweg"));
        assert_eq!(chosen.share("part"), 0.02);
    }

    #[test]
    fn what_is_set_counts() {
        let chosen = set(r#"{"qos": 2, "retain": true, "mode": "stream", "topic": "x"}"#).unwrap();
        assert_eq!((chosen.number("qos"), chosen.flag("retain")), (2, true));
        assert_eq!((chosen.text("mode"), chosen.text("topic")), ("stream", "x"));
    }

    #[test]
    fn a_share_is_from_0_to_1() {
        for (json, share) in [("0", 0.0), ("1", 1.0), ("0.5", 0.5), ("1e-6", 1e-6)] {
            assert_eq!(set(&format!(r#"{{"part": {json}}}"#)).unwrap().share("part"), share);
        }
        for json in ["2", "true", r#""0.5""#] {
            let error = set(&format!(r#"{{"part": {json}}}"#)).unwrap_err();
            assert!(error.to_string().contains("part must be a share from 0 to 1"), "{error}");
        }
        assert!(serde_json::from_str::<Settings>(r#"{"part": 1.5}"#).is_err());
        let back = serde_json::to_string(&serde_json::from_str::<Settings>(r#"{"part": 0.25}"#).unwrap());
        assert_eq!(back.unwrap(), r#"{"part":0.25}"#);
    }

    #[test]
    fn what_has_no_effect_beside_another_setting_is_refused() {
        let error = set(r#"{"retain": true, "mode": "unary"}"#).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let reason = "retain has no effect with mode = \"unary\"; it is for mode = stream";
        assert!(error.to_string().contains(reason), "{error}");
        for fine in [r#"{"retain": true}"#, r#"{"retain": false, "mode": "unary"}"#] {
            assert!(set(fine).is_ok(), "{fine}");
        }
    }

    #[test]
    fn refuses_with_what_there_is() {
        let refusal = |json| set(json).unwrap_err().to_string();
        assert!(refusal(r#"{"qos": 3}"#).contains("qos must be a whole number from 0 to 2"));
        assert!(refusal(r#"{"retain": 1}"#).contains("true or false"));
        assert!(refusal(r#"{"mode": "other"}"#).contains("one of stream, unary"));
        assert!(refusal(r#"{"speed": 1}"#).contains("qos, retain, mode, part, topic"));
        let long = serde_json::to_string(&BTreeMap::from([("topic", "x".repeat(201))])).unwrap();
        assert!(refusal(&long).contains("up to 200 bytes"));
        let none = serde_json::from_str::<Settings>(r#"{"qos": 1}"#).unwrap().read(&[]).unwrap_err();
        assert!(none.to_string().contains("no options of its own"), "{none}");
    }
}
