//! Translates errors of the broker and of lapin, and says what to do about them.

use thalweg_transport::{Error, ErrorKind};

// Reply codes of AMQP 0-9-1 (specification, section 1.2).
const CONNECTION_FORCED: u16 = 320;
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// Translates an error of lapin that occurred during `operation` at `place`.
pub(crate) fn explain(operation: &'static str, place: &dyn std::fmt::Display, error: &lapin::Error) -> Error {
    match error.kind() {
        lapin::ErrorKind::IOError(e) => Error::io(operation, place, e),
        lapin::ErrorKind::ProtocolError(reply) => {
            refused(operation, place, reply.get_id(), reply.get_message().as_str())
        }
        lapin::ErrorKind::ParsingError(_)
        | lapin::ErrorKind::SerialisationError(_)
        | lapin::ErrorKind::InvalidProtocolVersion(_) => {
            Error::new(ErrorKind::Corrupt, operation, format!("{place} does not speak AMQP 0-9-1: {error}"))
                .hint("check the address and the port")
        }
        lapin::ErrorKind::MissingHeartbeatError => {
            Error::closed(operation, format!("{place}: the broker has sent no heartbeat for too long"))
        }
        _ => Error::closed(operation, format!("{place}: {error}")),
    }
}

fn refused(operation: &'static str, place: &dyn std::fmt::Display, code: u16, reply: &str) -> Error {
    let error = |kind| Error::new(kind, operation, format!("{place}: the broker says {code} {reply}"));
    match code {
        ACCESS_REFUSED => {
            error(ErrorKind::Security).hint("check user, password and permissions of security.login_file")
        }
        NOT_ALLOWED if reply.contains("not found") => error(ErrorKind::Address)
            .hint("make the virtual host, or set transport.options.vhost to one there is"),
        NOT_ALLOWED => error(ErrorKind::Security).hint("give the user permissions on the virtual host"),
        NOT_FOUND => {
            error(ErrorKind::Unreachable).hint("start the server first, with the same transport.options")
        }
        RESOURCE_LOCKED => error(ErrorKind::InUse)
            .hint("end the server that has this job's name at the broker, or take another name"),
        PRECONDITION_FAILED if reply.contains("larger than") => {
            // The broker does not state its limit in any other way.
            error(ErrorKind::Closed).hint(
                "set transport.options.max_message to the broker's limit, lower transport.chunk, or raise the broker's \
                 max_message_size",
            )
        }
        CONNECTION_FORCED => {
            error(ErrorKind::Closed).hint("start the broker again: parties come back by themselves")
        }
        _ => error(ErrorKind::Closed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_kind_and_its_hint() {
        for (code, reply, kind, word) in [
            (403, "ACCESS_REFUSED - Login was refused", ErrorKind::Security, "login_file"),
            (530, "NOT_ALLOWED - vhost x not found", ErrorKind::Address, "vhost"),
            (530, "NOT_ALLOWED - access to vhost '/' refused", ErrorKind::Security, "permissions"),
            (404, "NOT_FOUND - no queue", ErrorKind::Unreachable, "server"),
            (405, "RESOURCE_LOCKED - exclusive", ErrorKind::InUse, "name"),
            (
                406,
                "PRECONDITION_FAILED - message size 9 is larger than 8",
                ErrorKind::Closed,
                "max_message_size",
            ),
            (320, "CONNECTION_FORCED - shutdown", ErrorKind::Closed, "again"),
        ] {
            let error = refused("test", &"here", code, reply);
            assert_eq!(error.kind(), kind, "{error}");
            let text = error.to_string();
            let hint = text.rsplit("; ").next().unwrap();
            assert!(hint.contains(word), "{error}");
        }
    }
}
