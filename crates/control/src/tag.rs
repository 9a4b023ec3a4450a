//! Reads Flame's Topology Abstraction Graph (Daga et al. 2023; LIFL, appendix D) as a tree of roles and
//! channels.
//!
//! A schema is a JSON file. Roles with `isDataConsumer` are clients. A channel joins two roles; the role
//! farther from the clients is the parent. `groupBy` divides a channel into groups by labels. A label such as
//! `default/us` belongs to the group `default` of the channel above.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

/// Maximum number of roles, of channels, and of groups of a channel.
const MOST: usize = 1_000;

/// What is wrong with a schema, where, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {cause}; {hint}")]
pub struct Fault {
    /// Line of the file, from 1.
    pub line: usize,
    /// What is wrong.
    pub cause: String,
    /// How to fix it.
    pub hint: String,
}

/// A tree of roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tag {
    /// The schema's name.
    pub name: String,
    /// Roles: clients first, the top last.
    pub roles: Vec<TagRole>,
    /// The tree's channels, sorted: the channels next to the clients come first.
    pub channels: Vec<Channel>,
}

/// A role of a TAG.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagRole {
    /// Name of the role.
    pub name: String,
    /// Number of channels between this role and the clients; 0 for clients.
    pub level: u32,
    /// Line of its name in the schema, from 1.
    pub line: usize,
}

/// A channel between two roles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Channel {
    /// Name of the channel.
    pub name: String,
    /// The role nearer to the clients.
    pub child: String,
    /// The role nearer to the top.
    pub parent: String,
    /// The channel's groups; empty if the channel is not divided.
    pub groups: Vec<Group>,
    /// Line of its name in the schema, from 1.
    pub line: usize,
}

/// A group of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Label of the group.
    pub label: String,
    /// Line of the label in the schema, from 1.
    pub line: usize,
}

#[derive(Deserialize)]
struct SchemaText<'a> {
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    roles: Vec<&'a RawValue>,
    #[serde(borrow)]
    channels: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RoleText<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(default)]
    is_data_consumer: bool,
    #[serde(borrow, default)]
    group_association: Vec<BTreeMap<String, &'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChannelText<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    pair: Vec<&'a RawValue>,
    #[serde(borrow, default)]
    group_by: Option<GroupByText<'a>>,
}

#[derive(Deserialize)]
struct GroupByText<'a> {
    #[serde(borrow, rename = "type", default)]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    value: Vec<&'a RawValue>,
}

/// A name, and its line in the schema.
type Named = (String, usize);

/// A channel whose direction is not known yet.
struct Pair {
    name: Named,
    ends: [usize; 2],
    groups: Vec<Group>,
}

/// Reads a schema. Refuses one that is not a tree: with cycles, unknown or unconnected roles, two parents of
/// a role, or groups without a parent.
pub fn read(text: &str) -> Result<Tag, Fault> {
    let source = Source(text);
    let schema: SchemaText<'_> = source.parse(text)?;
    let name =
        schema.name.map(|raw| source.name(raw)).transpose()?.map_or_else(String::new, |(name, _)| name);
    if schema.roles.len() > MOST || schema.channels.len() > MOST {
        return fault(1, format!("more than {MOST} roles or channels"), "Split the schema");
    }
    let roles: Vec<RoleText<'_>> =
        schema.roles.iter().map(|raw| source.parse(raw.get())).collect::<Result<_, _>>()?;
    let names = names(&source, &roles)?;
    let texts: Vec<ChannelText<'_>> =
        schema.channels.iter().map(|raw| source.parse(raw.get())).collect::<Result<_, _>>()?;
    let pairs: Vec<Pair> = texts.iter().map(|text| pair(&source, text, &names)).collect::<Result<_, _>>()?;
    associations(&source, &roles, &pairs)?;
    acyclic(&names, &pairs)?;
    let clients: Vec<bool> = roles.iter().map(|role| role.is_data_consumer).collect();
    let levels = levels(&names, &clients, &pairs)?;
    let channels = directed(&names, &levels, pairs)?;
    grouped(&channels)?;
    let mut roles: Vec<TagRole> =
        names.into_iter().zip(levels).map(|((name, line), level)| TagRole { name, level, line }).collect();
    roles.sort_by_key(|role| role.level);
    Ok(Tag { name, roles, channels })
}

fn fault<T>(line: usize, cause: impl Into<String>, hint: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line, cause: cause.into(), hint: hint.into() })
}

/// The schema's text. All raw values are slices of it.
struct Source<'a>(&'a str);

impl<'a> Source<'a> {
    /// The line at which a slice of the text begins.
    fn line(&self, part: &str) -> usize {
        let offset = (part.as_ptr() as usize).saturating_sub(self.0.as_ptr() as usize).min(self.0.len());
        1 + self.0.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count()
    }

    fn parse<T: Deserialize<'a>>(&self, part: &'a str) -> Result<T, Fault> {
        serde_json::from_str(part).map_err(|error| Fault {
            line: self.line(part) + error.line().saturating_sub(1),
            cause: format!("this is no schema of Flame: {error}"),
            hint: "Write JSON with roles (name, isDataConsumer) and channels (name, pair, groupBy)".into(),
        })
    }

    fn name(&self, raw: &'a RawValue) -> Result<Named, Fault> {
        let name: String = self.parse(raw.get())?;
        Ok((name, self.line(raw.get())))
    }
}

fn names<'a>(source: &Source<'a>, roles: &[RoleText<'a>]) -> Result<Vec<Named>, Fault> {
    let mut names: Vec<Named> = Vec::new();
    for role in roles {
        let (name, line) = source.name(role.name)?;
        if names.iter().any(|(known, _)| *known == name) {
            return fault(line, format!("the role {name:?} is there twice"), "Remove one, or rename it");
        }
        names.push((name, line));
    }
    Ok(names)
}

fn pair<'a>(source: &Source<'a>, text: &ChannelText<'a>, names: &[Named]) -> Result<Pair, Fault> {
    let name = source.name(text.name)?;
    let &[first, second] = &text.pair[..] else {
        let cause = format!("the channel {:?} has {} ends", name.0, text.pair.len());
        return fault(name.1, cause, "Give pair two roles");
    };
    let find = |raw: &'a RawValue| {
        let (role, line) = source.name(raw)?;
        names.iter().position(|(known, _)| *known == role).map_or_else(
            || {
                let known: Vec<&str> = names.iter().map(|(name, _)| name.as_str()).collect();
                let cause = format!("the channel {:?} ends at {role:?}, which is no role", name.0);
                fault(line, cause, format!("Known roles: {}", known.join(", ")))
            },
            Ok,
        )
    };
    let ends = [find(first)?, find(second)?];
    let groups = match &text.group_by {
        Some(group_by) => groups(source, group_by)?,
        None => Vec::new(),
    };
    Ok(Pair { name, ends, groups })
}

fn groups<'a>(source: &Source<'a>, text: &GroupByText<'a>) -> Result<Vec<Group>, Fault> {
    if let Some(raw) = text.kind {
        let (kind, line) = source.name(raw)?;
        if kind != "tag" {
            return fault(
                line,
                format!("groupBy has the type {kind:?}"),
                "Take the type \"tag\", the one that Flame has",
            );
        }
    }
    let mut groups: Vec<Group> = Vec::new();
    for &raw in text.value.iter().take(MOST + 1) {
        let (label, line) = source.name(raw)?;
        if groups.iter().any(|group| group.label == label) || groups.len() == MOST {
            return fault(
                line,
                format!("the group {label:?} is there twice, or is one of too many"),
                "Remove it",
            );
        }
        groups.push(Group { label, line });
    }
    Ok(groups)
}

/// Checks that every group named by a role's `groupAssociation` is a group of its channel.
fn associations<'a>(source: &Source<'a>, roles: &[RoleText<'a>], pairs: &[Pair]) -> Result<(), Fault> {
    for (channel, &raw) in roles.iter().flat_map(|role| &role.group_association).flatten() {
        let (label, line) = source.name(raw)?;
        let Some(pair) = pairs.iter().find(|pair| pair.name.0 == *channel) else {
            let known: Vec<&str> = pairs.iter().map(|pair| pair.name.0.as_str()).collect();
            let hint = format!("Known channels: {}", known.join(", "));
            return fault(
                line,
                format!("groupAssociation names the channel {channel:?}, which is not there"),
                hint,
            );
        };
        if !pair.groups.is_empty() && !pair.groups.iter().any(|group| group.label == label) {
            let known: Vec<&str> = pair.groups.iter().map(|group| group.label.as_str()).collect();
            let cause =
                format!("groupAssociation names the group {label:?}, which the channel {channel:?} has not");
            return fault(line, cause, format!("Known groups: {}", known.join(", ")));
        }
    }
    Ok(())
}

/// Refuses a channel between two roles that are already connected, and roles that are not connected.
fn acyclic(names: &[Named], pairs: &[Pair]) -> Result<(), Fault> {
    let mut part: Vec<usize> = (0..names.len()).collect();
    for Pair { name: (name, line), ends: [first, second], .. } in pairs {
        let (from, to) = (part[*first], part[*second]);
        if first == second {
            let cause =
                format!("the channel {name:?} joins {:?} with itself, which is a cycle", names[*first].0);
            return fault(
                *line,
                cause,
                "Learn on a graph instead (job.graph), or join it with an aggregator",
            );
        }
        if from == to {
            let ends = format!("{:?} and {:?}", names[*first].0, names[*second].0);
            let cause = format!("the channel {name:?} closes a cycle: {ends} are joined already");
            return fault(*line, cause, "Remove one of the channels between them");
        }
        part.iter_mut().filter(|part| **part == from).for_each(|part| *part = to);
    }
    let Some(first) = part.first() else { return fault(1, "there are no roles", "Give roles and channels") };
    match part.iter().position(|part| part != first) {
        Some(role) => {
            let cause = format!("no channel joins the role {:?} with {:?}", names[role].0, names[0].0);
            fault(names[role].1, cause, "Add a channel, or remove the role")
        }
        None => Ok(()),
    }
}

/// The number of channels between each role and the clients.
fn levels(names: &[Named], clients: &[bool], pairs: &[Pair]) -> Result<Vec<u32>, Fault> {
    let mut levels: Vec<Option<u32>> = clients.iter().map(|&client| client.then_some(0)).collect();
    if !clients.contains(&true) {
        return fault(
            names[0].1,
            "no role is a client",
            "Give the role that trains \"isDataConsumer\": true",
        );
    }
    for level in 0..names.len() as u32 {
        for Pair { ends, .. } in pairs {
            for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                if levels[from] == Some(level) && levels[to].is_none() {
                    levels[to] = Some(level + 1);
                }
            }
        }
    }
    // All roles are connected, so each has a level.
    Ok(levels.into_iter().map(Option::unwrap_or_default).collect())
}

/// Turns pairs into channels with a child and a parent. Refuses a role with two parents.
fn directed(names: &[Named], levels: &[u32], pairs: Vec<Pair>) -> Result<Vec<Channel>, Fault> {
    let mut above: Vec<Option<String>> = vec![None; names.len()];
    let mut channels = Vec::new();
    for Pair { name: (name, line), ends: [first, second], groups } in pairs {
        let (child, parent) = if levels[first] < levels[second] { (first, second) } else { (second, first) };
        if levels[first] == levels[second] {
            let cause = format!("the channel {name:?} joins two roles that are as far from the clients");
            return fault(line, cause, "Put an aggregator above both, or make one of them no isDataConsumer");
        }
        if let Some(other) = above[child].replace(name.clone()) {
            let cause =
                format!("{:?} has two parents, by the channels {other:?} and {name:?}", names[child].0);
            return fault(line, cause, "Remove one of them");
        }
        let (child, parent) = (names[child].0.clone(), names[parent].0.clone());
        channels.push((levels[first].min(levels[second]), Channel { name, child, parent, groups, line }));
    }
    // All roles are connected without a cycle, and none has two parents. So exactly one has no parent.
    channels.sort_by_key(|(level, _)| *level);
    Ok(channels.into_iter().map(|(_, channel)| channel).collect())
}

/// Checks that each group belongs to a group of the channel above, and that the top's channel has only one
/// group.
fn grouped(channels: &[Channel]) -> Result<(), Fault> {
    for channel in channels {
        let Some(above) = channels.iter().find(|above| above.child == channel.parent) else {
            if let [_, second, ..] = &channel.groups[..] {
                let cause = format!("the group {:?} would have a top of its own", second.label);
                return fault(
                    second.line,
                    cause,
                    "Add a role above, which joins the groups, or keep one group",
                );
            }
            continue;
        };
        let inside = |group: &Group| {
            above.groups.is_empty() || above.groups.iter().any(|outer| is_within(&group.label, &outer.label))
        };
        if let Some(group) = channel.groups.iter().find(|group| !inside(group)) {
            let known: Vec<&str> = above.groups.iter().map(|group| group.label.as_str()).collect();
            let cause =
                format!("the group {:?} belongs to no group of the channel {:?}", group.label, above.name);
            return fault(group.line, cause, format!("Begin its label with one of: {}", known.join(", ")));
        }
    }
    Ok(())
}

/// Whether a label such as `default/us` equals `outer` or lies below it.
fn is_within(label: &str, outer: &str) -> bool {
    label.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
