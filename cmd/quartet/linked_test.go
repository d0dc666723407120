package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// All services are in this program: 9 MiB are the command line, of which quartet top on a terminal has 1, and syncloop
// alone has 36.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 46) }
