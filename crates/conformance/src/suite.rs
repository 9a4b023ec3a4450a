//! The list of all sentences of the contract, and the macros that turn it into tests.
//!
//! The body of each test is compiled once, in this crate. A transport's tests call it through a pointer.

/// The test of one sentence of the contract, with a boxed future.
pub type Sentence = for<'a> fn(&'a crate::Factory) -> futures_util::future::LocalBoxFuture<'a, ()>;

/// Makes the tests of the whole contract for one transport: `thalweg_conformance::suite!(factory());` in a
/// test file.
///
/// The expression makes a [`Factory`](crate::Factory). It is evaluated for each test, inside a tokio runtime.
/// The optional block after `before` is evaluated first, on the test's thread, which starts the runtime's
/// threads. Its value lives until the test ends.
#[macro_export]
macro_rules! suite {
    (before $before:block; $factory:expr $(,)?) => {
        $crate::contract! { contract_tests { $before, $factory } }
    };
    ($factory:expr $(,)?) => {
        $crate::suite!(before {}; $factory);
    };
}

/// Makes the tests about unauthenticated peers. They will become part of [`suite!`] once every transport
/// passes them.
#[macro_export]
macro_rules! unauthenticated_peers {
    (before $before:block; $factory:expr $(,)?) => {
        $crate::contract_on_unauthenticated_peers! { contract_tests { $before, $factory } }
    };
    ($factory:expr $(,)?) => {
        $crate::unauthenticated_peers!(before {}; $factory);
    };
}

/// Makes a test for each sentence.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_tests {
    ({ $before:block, $factory:expr } $($module:ident { $($sentence:ident)* })*) => {
        $(mod $module {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $sentence() {
                let _before = $before;
                $crate::run(stringify!($sentence), &|| $factory, $crate::sentences::$module::$sentence);
            })*
        })*
    };
}

/// Makes a function of type [`Sentence`] for each sentence.
macro_rules! boxed {
    ({} $($module:ident { $($sentence:ident)* })*) => {
        $(pub mod $module {
            use crate::Factory;
            use futures_util::future::LocalBoxFuture;
            $(pub fn $sentence(factory: &Factory) -> LocalBoxFuture<'_, ()> {
                Box::pin(crate::$module::$sentence(factory))
            })*
        })*
    };
}

/// Calls another macro with the list of sentences of [`suite!`].
#[doc(hidden)]
#[macro_export]
macro_rules! contract {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            addresses {
                the_name_is_the_scheme
                the_listener_says_the_port_the_system_chose
                a_taken_address_is_in_use
                nobody_there_is_unreachable
                an_option_it_cannot_honour_is_unsupported
                peers_have_an_address_for_people
                a_chunk_of_the_greatest_size_is_within_the_frames_limit
            }
            control {
                messages_arrive_both_ways_in_order
                an_empty_message_is_a_message
                a_message_of_the_greatest_length_arrives
                a_longer_message_is_refused_and_the_link_goes_on
                dropping_a_send_breaks_at_most_the_link
            }
            chunks {
                every_chunk_lands_at_its_place
                chunks_come_in_any_order
                only_the_wanted_ranges_are_sent
                chunks_have_any_size
                bytes_are_sent_whether_an_arena_lends_them_or_not
                an_update_without_chunks_is_sent
                the_header_arrives_unchanged
                a_wrong_checksum_is_reported_and_the_link_goes_on
                a_chunk_nobody_wants_is_dropped
                a_scratch_buffer_is_a_place
                progress_sums_to_the_bytes
                a_chunk_sent_twice_comes_twice
                an_update_begins_with_its_first_bytes
                the_report_says_what_was_sent
            }
            flow {
                control_overtakes_a_running_update
                a_detached_update_waits_for_no_message
                both_directions_go_on_at_once
                many_updates_share_a_link
                many_links_go_on_at_once
                a_link_not_yet_accepted_holds_up_nobody
                a_dropped_receive_leaves_the_sending_side
            }
            groups {
                each_member_gets_all_and_done_hears_of_each_once
                an_empty_group_is_done
                a_dead_member_fails_alone
                a_slow_member_holds_up_nobody
            }
            cancelling {
                cancel_ends_the_loan_and_the_link_goes_on
                released_says_when_the_memory_is_free
                a_cancelled_update_is_not_begun
                cancel_stops_its_own_update_only
                the_loan_ends_with_the_call
            }
            preparing {
                a_chunk_has_one_place_beforehand_or_when_it_comes
                places_of_a_cancelled_update_are_given_back
                places_of_a_link_that_ended_are_given_back
            }
            closing {
                close_wakes_a_blocked_receive_at_both_ends
                close_wakes_a_blocked_send
                close_by_the_peer_wakes_a_blocked_send
                all_calls_fail_after_close
                closing_twice_is_fine
                a_peer_that_is_dropped_is_gone
            }
            counting {
                counters_cover_the_payload
                nothing_is_copied_by_a_transport_that_says_so
            }
            trust {
                an_intruder_harms_nobody
                a_stranger_is_refused
                both_ends_share_a_secret
                a_certificate_names_the_peer
            }
        }
    };
}

/// Calls another macro with the list of sentences of [`unauthenticated_peers!`].
#[doc(hidden)]
#[macro_export]
macro_rules! contract_on_unauthenticated_peers {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            unauthenticated_peers {
                an_unauthenticated_peer_may_say_who_it_is
                an_unauthenticated_peer_may_say_no_more
                an_unauthenticated_peer_sends_no_chunks
                an_admitted_peer_sends_what_it_likes
                an_unauthenticated_peer_gives_way_to_others
                an_unauthenticated_peer_that_leaves_frees_its_place
            }
        }
    };
}

pub(crate) use boxed;
