// Package conformance checks whether a process keeps the contract of one of the four parts of a node: configmux, pleg,
// syncloop or nodestatus. It is for authors who replace a part by a program of their own. Package main of
// `quartet conformance` prints its results; a Go test calls it like this:
//
//	runtime, err := conformance.ServeRuntime("/tmp/my-pleg/cri.sock") // a scripted container runtime for the pleg
//	...
//	conformance.PLEG().Test(t, conformance.Part{Conn: conn, Runtime: runtime})
//
// A contract is the comments of the files in proto/. Each [Rule] names the comment that it checks and quotes it. The
// checks only make calls, so the part may be written in any language.
//
// The rules of package internal/stream/streamtest are those of this repository's own publishers and followers, with
// access to both ends. The rules here see only what a peer sees.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// Outcome is the result of the check of a rule.
type Outcome string

// The outcomes.
const (
	// Pass means that the part keeps the rule, as far as the check can see.
	Pass Outcome = "pass"
	// Fail means that the part breaks the rule.
	Fail Outcome = "fail"
	// Skip means that the rule could not be checked.
	Skip Outcome = "skip"
)

// Rule is one rule of a contract.
type Rule struct {
	// Name identifies the rule among those of a suite, for example "stream-unique".
	Name string `json:"rule"`
	// Comment is what the comment belongs to: a file ("quartet.stream.v1"), RPC, message, field or enum value in proto/.
	Comment string `json:"comment"`
	// Text is the rule in the words of the comment.
	Text string `json:"text"`
}

// Result is the result of the check of a rule.
type Result struct {
	Rule
	Outcome Outcome `json:"outcome"`
	// Why is the reason of a failure or of a skip; empty for a pass.
	Why string `json:"why,omitempty"`
	// Took is the duration of the check.
	Took time.Duration `json:"-"`
}

// Part is the process to check, and what the checks may do with it.
type Part struct {
	// Conn is a connection to it, which reconnects.
	Conn grpc.ClientConnInterface
	// Runtime is the container runtime that a pleg observes. Without it, the rules that need changes are skipped.
	Runtime *Runtime
	// Restart ends the process without a warning, as by SIGKILL, and starts it again with the same flags and files. It
	// need not wait until the process serves. Without it, the rules about restarts are skipped.
	Restart func(ctx context.Context) error
	// AllowChanges allows the rules that change what the node should run: they apply and delete pods and objects of their
	// own. Without it, they are skipped.
	AllowChanges bool
	// Rules are the names of the rules to check; empty for all.
	Rules []string
	// Patience is the time limit for what a part does by itself, such as an event after a change; 0 for 30 s.
	Patience time.Duration
}

// Suite is the rules of one part.
type Suite struct {
	// Service is the name of the part: "configmux", "pleg", "syncloop" or "nodestatus".
	Service string

	rules []rule
}

// rule is a Rule with its check. The check returns nil, an error, or an error of skip.
type rule struct {
	Rule
	check func(context.Context, *bench) error
}

// Suites returns the suites of all parts.
func Suites() []Suite { return []Suite{ConfigMux(), PLEG(), SyncLoop(), NodeStatus()} }

// Rules returns the rules of the suite in the order of their checks.
func (s Suite) Rules() []Rule {
	all := make([]Rule, 0, len(s.rules))
	for _, r := range s.rules {
		all = append(all, r.Rule)
	}
	return all
}

// Check checks one rule after another, and calls report with each result. It fails without a check if the part names a
// rule that does not exist, and it ends with the error of the context.
func (s Suite) Check(ctx context.Context, part Part, report func(Result)) error {
	for _, name := range part.Rules {
		if !slices.ContainsFunc(s.rules, func(r rule) bool { return r.Name == name }) {
			return fmt.Errorf("%s has no rule %q; it has %s", s.Service, name, strings.Join(s.names(), ", "))
		}
	}
	for _, r := range s.rules {
		if len(part.Rules) > 0 && !slices.Contains(part.Rules, r.Name) {
			continue
		}
		begin := time.Now()
		err := newBench(part, r.Name).run(ctx, r.check)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		result := Result{Rule: r.Rule, Outcome: Pass, Took: time.Since(begin)}
		var skipped *skipError
		switch {
		case errors.As(err, &skipped):
			result.Outcome, result.Why = Skip, skipped.reason
		case err != nil:
			result.Outcome, result.Why = Fail, err.Error()
		}
		report(result)
	}
	return nil
}

func (s Suite) names() []string {
	var names []string
	for _, r := range s.rules {
		names = append(names, r.Name)
	}
	return names
}

// T has the methods of *testing.T that Test needs.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Test checks all rules in a test: a broken rule is an error of the test, and the other results are logged.
func (s Suite) Test(t T, part Part) {
	t.Helper()
	if err := s.Check(t.Context(), part, func(r Result) {
		if r.Outcome == Fail {
			t.Errorf("%s breaks %s (%s: %q): %s", s.Service, r.Name, r.Comment, r.Text, r.Why)
			return
		}
		t.Logf("%s %s in %v %s", r.Outcome, r.Name, r.Took.Round(time.Millisecond), r.Why)
	}); err != nil {
		t.Errorf("checking %s: %v", s.Service, err)
	}
}

// skipError ends the check of a rule that cannot be checked.
type skipError struct{ reason string }

// Error implements error.
func (e *skipError) Error() string { return e.reason }

func skip(reason string) error { return &skipError{reason: reason} }
