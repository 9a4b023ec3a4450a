//! Tests of Flame's schemas: those of its documentation are read, and those that are not trees are refused.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use thalweg_control::tag::{read, Fault};

/// The hierarchical example of Flame's documentation, shortened.
const HIERARCHY: &str = r#"{
  "name": "hierarchical FL",
  "roles": [
    {"name": "trainer", "isDataConsumer": true},
    {"name": "middle-aggregator", "description": "aggregates the updates from trainers"},
    {"name": "top-aggregator"}
  ],
  "channels": [
    {
      "name": "param-channel",
      "pair": ["trainer", "middle-aggregator"],
      "groupBy": {"type": "tag", "value": [
        "default/us",
        "default/europe"
      ]},
      "funcTags": {"trainer": ["fetch", "upload"], "middle-aggregator": ["distribute", "aggregate"]}
    },
    {
      "name": "global-channel",
      "pair": ["top-aggregator", "middle-aggregator"],
      "groupBy": {"type": "tag", "value": ["default"]}
    }
  ]
}"#;

fn refused(text: &str) -> Fault {
    read(text).unwrap_err()
}

/// The example with one part replaced.
fn with(old: &str, new: &str) -> String {
    assert!(HIERARCHY.contains(old));
    HIERARCHY.replacen(old, new, 1)
}

#[test]
fn the_hierarchical_example_is_a_tree_of_three_levels() {
    let tag = read(HIERARCHY).unwrap();
    let roles: Vec<_> = tag.roles.iter().map(|role| (role.name.as_str(), role.level, role.line)).collect();
    assert_eq!(roles, [("trainer", 0, 4), ("middle-aggregator", 1, 5), ("top-aggregator", 2, 6)]);
    let channels: Vec<_> =
        tag.channels.iter().map(|c| (c.name.as_str(), c.child.as_str(), c.parent.as_str(), c.line)).collect();
    assert_eq!(
        channels,
        [
            ("param-channel", "trainer", "middle-aggregator", 10),
            ("global-channel", "middle-aggregator", "top-aggregator", 19),
        ]
    );
    let groups: Vec<_> =
        tag.channels[0].groups.iter().map(|group| (group.label.as_str(), group.line)).collect();
    assert_eq!(groups, [("default/us", 13), ("default/europe", 14)]);
}

#[test]
fn an_unknown_role_is_refused_with_its_line() {
    let fault = refused(&with(r#"["trainer", "middle-aggregator"]"#, r#"["trainer", "midle"]"#));
    assert_eq!(fault.line, 11);
    assert_eq!(fault.cause, "the channel \"param-channel\" ends at \"midle\", which is no role");
    assert_eq!(fault.hint, "Known roles: trainer, middle-aggregator, top-aggregator");
}

#[test]
fn cycles_are_refused_with_the_channel_that_closes_them() {
    let third = r#""channels": [
    {"name": "short-cut", "pair": ["trainer", "top-aggregator"]},"#;
    let fault = refused(&with(r#""channels": ["#, third));
    assert_eq!((fault.line, fault.hint.as_str()), (20, "Remove one of the channels between them"));
    assert!(fault.cause.starts_with("the channel \"global-channel\" closes a cycle"), "{}", fault.cause);
    let fault = refused(&with(r#"["trainer", "middle-aggregator"]"#, r#"["trainer", "trainer"]"#));
    assert!(fault.cause.contains("with itself") && fault.hint.contains("job.graph"));
}

#[test]
fn what_is_no_tree_is_refused() {
    let cases = [
        (with(r#", "isDataConsumer": true"#, ""), 4, "no role is a client"),
        (
            with(r#""top-aggregator"}"#, r#""top-aggregator"}, {"name": "spare"}"#),
            6,
            "no channel joins the role \"spare\"",
        ),
        (with(r#""top-aggregator"}"#, r#""trainer"}"#), 6, "is there twice"),
        (
            with(r#"["top-aggregator", "middle-aggregator"]"#, r#"["top-aggregator", "trainer"]"#),
            19,
            "has two parents",
        ),
        (with(r#"["default"]"#, r#"["default", "other"]"#), 21, "a top of its own"),
        (with(r#""default/europe""#, r#""defaults/europe""#), 14, "belongs to no group"),
        (with(r#""type": "tag", "value": ["#, r#""type": "hash", "value": ["#), 12, "the type \"hash\""),
        (
            with(
                r#""isDataConsumer": true"#,
                r#""isDataConsumer": true, "groupAssociation": [{"param-channel": "x"}]"#,
            ),
            4,
            "the group \"x\"",
        ),
        (
            with(
                r#""isDataConsumer": true"#,
                r#""isDataConsumer": true, "groupAssociation": [{"other": "x"}]"#,
            ),
            4,
            "the channel \"other\"",
        ),
        (with(r#"trainers"},"#, r#"trainers",},"#), 5, "no schema"),
        (with(r#"["trainer", "middle-aggregator"]"#, r#"["trainer"]"#), 10, "has 1 ends"),
        ("{}".to_owned(), 1, "missing field"),
        (r#"{"roles": [], "channels": []}"#.to_owned(), 1, "no roles"),
    ];
    for (text, line, cause) in cases {
        let fault = refused(&text);
        assert!(fault.cause.contains(cause), "{cause}: {fault}");
        assert_eq!(fault.line, line, "{fault}");
        assert!(!fault.hint.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A schema with parts cut out or added is read or refused; it never panics.
    #[test]
    fn damaged_schemas_are_read_or_refused(start in 0_usize..900, length in 0_usize..200, put in "[\\[\\]{}\",: a-z]{0,8}") {
        let mut text = HIERARCHY.to_owned();
        let start = start.min(text.len());
        let end = (start + length).min(text.len());
        text.replace_range(start..end, &put);
        if let Err(fault) = read(&text) {
            prop_assert!(fault.line >= 1 && fault.line <= text.lines().count().max(1) + 1);
        }
    }
}
