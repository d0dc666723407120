package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 31 MiB before the messages of CSI and storage/v1, which are 1 MiB together, and 32 MiB before the
// volumes of storage classes and project quotas, and 33 MiB before the messages of resource claims and DRA drivers.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 34) }
