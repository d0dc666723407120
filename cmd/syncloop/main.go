// Command syncloop is the service syncloop alone, for its image. Package services/syncloop describes it.
package main

import "github.com/quartet-node/quartet/services/syncloop"

func main() { syncloop.Main() }
