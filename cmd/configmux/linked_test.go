package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 26 MiB before the API of storage/v1 and its validation, which are half a MiB, and 27 before TLS between
// machines and the contracts of what a configmux on another machine may be asked.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 28) }
