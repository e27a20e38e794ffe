//! The rules of the house hold, but for what `exceptions.txt` lists.

use terrace_house::{Finding, Workspace, exceptions::disagreements, rules};

type Rule = fn(&Workspace) -> Vec<Finding>;

/// One test, since reading all sources takes longer than looking at them.
#[test]
fn the_rules_hold_but_for_what_is_listed() {
    let rules: [(&str, Rule); 11] = [
        ("files", rules::folders_are_small),
        ("circle", rules::folders_import_downwards),
        ("spread", rules::methods_lie_together),
        ("selfcalls", rules::methods_call_no_circles),
        ("open", rules::state_is_private),
        ("whole", rules::the_whole_is_not_passed),
        ("above", rules::facades_hold_nothing_above),
        ("reads", rules::records_are_read_through_their_door),
        ("seam", rules::waiting_goes_through_its_seam),
        ("long", rules::functions_are_short),
        ("line", rules::documents_have_short_lines),
    ];
    let workspace = Workspace::read();
    let wrong: Vec<String> = rules
        .iter()
        .flat_map(|(rule, find)| disagreements(&workspace.root, rule, &find(&workspace)))
        .collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
