package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 26 MiB before the API of storage/v1 and its validation, which are half a MiB.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 27) }
