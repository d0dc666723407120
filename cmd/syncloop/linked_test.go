package main

import (
	"testing"

	"github.com/quartet-node/quartet/test/linked"
)

// The limit was 31 MiB before the messages of CSI and storage/v1, which are 1 MiB together, 32 MiB before the volumes
// of storage classes and project quotas, 33 MiB before the messages of resource claims and DRA drivers, 34 MiB
// before CPUs for one container, the pods API and the health of volumes, 35 MiB before DebugService, reflection and
// channelz, which are 0.4 MiB together, and 36 MiB, less 8 KiB, before expressions were compiled when they are needed.
func TestNothingIsLinkedThatMustNotBe(t *testing.T) { linked.Check(t, 37) }
