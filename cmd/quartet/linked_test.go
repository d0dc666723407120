package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// All services are in this program: 27 MiB are the command line, and syncloop alone has 35.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 52) }
