package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 23) }
