"""The data that crosses between stages. Nothing here runs user code, reads configuration or imports a stage."""
