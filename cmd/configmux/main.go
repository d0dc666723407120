// Command configmux is the service configmux alone, for its image. Package services/configmux describes it.
package main

import "github.com/quartet-node/quartet/services/configmux"

func main() { configmux.Main() }
